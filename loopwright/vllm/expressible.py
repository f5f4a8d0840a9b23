"""What of a looped model vLLM can run, asked of its config before anything is built; the rest is refused by name."""

from __future__ import annotations

from collections.abc import Iterator

from loopwright.model.config import LoopedConfig
from loopwright.model.parts.adapter import ADAPTERS
from loopwright.settings import options_of

# what a page of keys can hold of a pooled state: a chunk's mean would need the running sums of single earlier tokens
POOLINGS = ("prefix", "token", "none")


def check_expressible(config: LoopedConfig, *, ranks: int = 1, quantised: str | None = None) -> None:
    """Raises a ValueError that names each part that vLLM cannot run, on `ranks` devices that share each layer."""
    problems = [
        *_parts(config),
        *(_shared(config, ranks) if ranks > 1 else ()),
        *(_quantised(config, quantised) if quantised else ()),
    ]
    if problems:
        raise ValueError(f"vLLM cannot run this model: {'; '.join(problems)}")


def _parts(config: LoopedConfig) -> Iterator[str]:
    if config.read_out != "last":
        yield f"read_out is {config.read_out!r}, and it reads the last step alone; allowed: last"
    for index, spec in enumerate(config.adapters):
        pooling = spec.get("pooling", "prefix")
        if pooling not in POOLINGS:
            yield f"adapters[{index}] ({spec['kind']}) has pooling {pooling!r}; allowed: {', '.join(POOLINGS)}"
        elif config.sliding_window is not None and "pooling" in options_of(ADAPTERS[spec["kind"]]) and pooling == "prefix":
            yield (
                f"adapters[{index}] ({spec['kind']}) has pooling 'prefix', which reads all tokens, beside sliding_window "
                f"{config.sliding_window}; allowed: token, none"
            )


def _shared(config: LoopedConfig, ranks: int) -> Iterator[str]:
    if config.adapters:
        kinds = ", ".join(dict.fromkeys(spec["kind"] for spec in config.adapters))
        yield f"adapters ({kinds}) are not split; allowed with them: tensor_parallel_size 1 (got {ranks}) and data parallelism"
    if config.qk_norm == "full":
        yield f"qk_norm 'full' reads all heads; allowed with it: tensor_parallel_size 1 (got {ranks}) and data parallelism"
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        if getattr(config, name) % ranks:
            yield f"{name} is {getattr(config, name)}, not a multiple of tensor_parallel_size {ranks}"


def _quantised(config: LoopedConfig, method: str) -> Iterator[str]:
    if config.adapters:
        kinds = ", ".join(dict.fromkeys(spec["kind"] for spec in config.adapters))
        yield f"adapters ({kinds}) read plain weights; allowed with them: no quantization (got {method})"
