"""How a model is called: what its forward offers, which ids it is asked about, and what comes back.

Any module that takes input ids and returns logits can be probed. What else it can do is read off the signature of its
forward; loopwright models offer everything. What a check finds is collected in a `Tally`: comparisons of logits,
with a verdict and the numbers behind it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from loopwright.model.causal_lm import LoopedForCausalLM

# what public models call the same thing
DEPTH_NAMES = ("depth", "num_steps", "total_ut_steps", "num_loops", "n_loops", "loops", "ut_steps")
STATE_NAMES = ("initial_state", "input_states")
LENGTH_NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "block_size", "max_seq_len", "max_sequence_length")
WIDTH_NAMES = ("hidden_size", "n_embd", "d_model")
SPECIAL_NAMES = ("pad_token_id", "bos_token_id", "eos_token_id")

TOKENS = 14  # per row: several chunks, several pads, and still quick
FEWEST_TOKENS = 8
DEEPEST = 4  # steps of an ordinary call; more of them repeat what these show
SEED = 20_250

# the difference allowed between two ways to the same logits, relative to the largest logit, in a pass of USUAL_RUNS layers or
# fewer; over more layers rounding adds up like a random walk, so the square root of their number is allowed
RELATIVE_TOLERANCES: dict[torch.dtype, float] = {
    torch.float64: 1e-10,
    torch.float32: 3e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}
USUAL_RUNS = 24
SHOWN_FAILURES = 2


@dataclass(frozen=True)
class Verdict:
    """The outcome of a check; `passed` is None where it does not apply, and `detail` says why.

    `by_rounding` says that it failed by differences above a tolerance alone, which rounding could have made.
    """

    passed: bool | None
    detail: str
    by_rounding: bool = False


class NotOfferedError(Exception):
    """A check does not apply to this model; the message says what is absent."""


class Tally:
    """The comparisons of one check. `close` allows rounding, `same` does not, `differ` and `hold` state facts."""

    def __init__(self, dtype: torch.dtype, runs: int = USUAL_RUNS) -> None:
        self.dtype = dtype
        once = RELATIVE_TOLERANCES.get(dtype, RELATIVE_TOLERANCES[torch.bfloat16])
        self.relative = once * math.sqrt(max(runs, USUAL_RUNS) / USUAL_RUNS)
        self.failures: list[str] = []
        self.distant = 0  # failures by a finite difference above the tolerance
        self.notes: list[str] = []
        self.worst: tuple[float, float, float] | None = None  # share of the tolerance used, difference, tolerance
        self.exact = 0

    def close(self, where: str, got: Tensor, want: Tensor, *, times: float = 1.0) -> None:
        """Compares two logits [B, T, V] up to rounding; `times` widens or narrows what is allowed."""
        tolerance = self.allowed(want) * times
        difference, place = largest_difference(got, want)
        if not difference <= tolerance < math.inf:  # what is not finite is a failure too
            self.failures.append(f"{where}: difference {difference:.1e} above tolerance {tolerance:.1e}{place}")
            self.distant += math.isfinite(difference) and math.isfinite(tolerance)
        share = difference / tolerance if tolerance else float(difference > 0)
        if self.worst is None or share > self.worst[0]:
            self.worst = (share, difference, tolerance)

    def same(self, where: str, got: Tensor, want: Tensor) -> None:
        """Compares two tensors bit for bit."""
        self.exact += 1
        if not same_bits(got, want):
            difference, place = largest_difference(got, want)
            self.failures.append(f"{where}: not the same bits, difference {difference:.1e}{place}")

    def differ(self, where: str, got: Tensor, want: Tensor) -> None:
        """States that two tensors are not the same."""
        self.hold(f"{where}: the same bits, where they must differ", not same_bits(got, want))

    def hold(self, failure: str, truth: bool) -> None:
        """States a fact; `failure` is what to say where it is not one."""
        if not truth:
            self.failures.append(failure)

    def allowed(self, want: Tensor) -> float:
        """Returns the difference allowed from these logits."""
        return self.relative * float(want.detach().abs().max())

    def verdict(self) -> Verdict:
        """Returns pass or fail, with the largest difference or the first failures."""
        parts = self.failures[:SHOWN_FAILURES]
        if len(self.failures) > SHOWN_FAILURES:
            parts.append(f"and {len(self.failures) - SHOWN_FAILURES} more")
        if not self.failures and self.worst is not None:
            _, difference, tolerance = self.worst
            parts.append(f"max difference {difference:.1e}, tolerance {tolerance:.1e} ({str(self.dtype).removeprefix('torch.')})")
        if not self.failures and self.exact:
            parts.append(f"same bits in {self.exact} comparison{'s' if self.exact > 1 else ''}")
        return Verdict(not self.failures, "; ".join(parts + self.notes), 0 < len(self.failures) == self.distant)


def largest_difference(got: Tensor, want: Tensor) -> tuple[float, str]:
    """Returns the largest absolute difference (infinite where shapes differ) and where it stands, in words."""
    if got.shape != want.shape:
        return math.inf, f" (shape {tuple(got.shape)} against {tuple(want.shape)})"
    if not got.numel():
        return 0.0, ""
    gap = (got.detach().double() - want.detach().to(got.device).double()).abs()
    gap = torch.where(gap.isnan(), torch.inf, gap)
    index = torch.unravel_index(gap.argmax(), gap.shape)
    place = f" (row {int(index[0])}, position {int(index[1])})" if gap.dim() == 3 else ""
    return float(gap.max()), place


def same_bits(got: Tensor, want: Tensor) -> bool:
    """Returns whether two tensors have the same shape and values; a NaN equals nothing."""
    return got.shape == want.shape and torch.equal(got, want.to(got.device))


@dataclass(frozen=True)
class ProbeResult:
    """What one call gave: logits [B, T, V], and loss, cache and the logits of each step where the model returns them."""

    logits: Tensor
    loss: Tensor | None
    cache: Any
    steps: tuple[Tensor, ...] | None


class Probe:
    """One model under check, and the ways to call it."""

    def __init__(self, model: nn.Module, vocab_size: int | None = None) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"check: {type(model).__name__} is not a model; allowed: a torch.nn.Module (load a folder with lw.load)"
            )
        self.model = model
        self.parameters = forward_parameters(model)
        self.config: Any = getattr(model, "config", None)
        self.vocab_size = find_vocab_size(model) if vocab_size is None else vocab_size
        if self.vocab_size < 2:
            raise ValueError(f"check: vocab_size {self.vocab_size}; allowed: at least 2")
        first = next(model.parameters(), None)
        self.device = torch.device("cpu") if first is None else first.device
        if self.device.type == "meta":
            raise ValueError("check: the parameters are on the meta device and have no values; load the model first")
        limits = [self._setting(name) for name in LENGTH_NAMES]
        self.length: int = min([TOKENS, *(n for n in limits if isinstance(n, int))])
        if self.length < FEWEST_TOKENS:
            raise ValueError(f"check: the model takes {self.length} tokens; allowed: at least {FEWEST_TOKENS}")
        self.own = model if isinstance(model, LoopedForCausalLM) else None
        self.depth: int | None = None
        if self.own is not None and self.own.config.is_looped:
            self.depth = min(self.own.config.depth, DEEPEST)
        self.dtype = self._coarsest_dtype()
        self.usable = self._usable_ids()

    # what it offers

    def offers(self, name: str) -> bool:
        """Returns whether the forward takes an argument of this name."""
        return name in self.parameters

    def need(self, name: str) -> None:
        """Raises NotOfferedError where the forward takes no argument of this name."""
        if not self.offers(name):
            raise NotOfferedError(f"forward has no {name}")

    def need_core(self) -> LoopedForCausalLM:
        """Returns the model, a loopwright model with a core; raises NotOfferedError where it is not one."""
        if self.own is None:
            raise NotOfferedError("forward has no output_steps; only loopwright models do")
        if self.depth is None:
            raise NotOfferedError("no core: a dense model runs its layers once")
        return self.own

    def argument(self, names: tuple[str, ...]) -> str | None:
        """Returns the first of these names that the forward takes."""
        return next((name for name in names if self.offers(name)), None)

    def tally(self) -> Tally:
        """Returns an empty list of comparisons, at the tolerance of the model's dtype and of the layers a pass runs."""
        if self.own is None:
            layers = self._setting("num_hidden_layers")
            return Tally(self.dtype, layers) if isinstance(layers, int) else Tally(self.dtype)
        config = self.own.config
        return Tally(self.dtype, config.prelude_layers + config.coda_layers + config.core_layers * (self.depth or 0))

    # the ids it is asked about

    def ids(self, rows: int, length: int | None = None, *, seed: int = 0) -> Tensor:
        """Returns random ids [rows, length], without the config's special tokens where others are left."""
        generator = torch.Generator().manual_seed(SEED + seed)
        return self.usable[torch.randint(len(self.usable), (rows, length or self.length), generator=generator)].to(self.device)

    def changed(self, ids: Tensor, start: int) -> Tensor:
        """Returns the ids with every token from `start` on replaced by another one."""
        result = ids.clone()
        other = self.ids(*ids.shape, seed=1)
        result[:, start:] = torch.where(other == ids, (ids + 1) % self.vocab_size, other)[:, start:]
        return result

    # the calls

    def logits(self, ids: Tensor, *, mask: Tensor | None = None, options: Mapping[str, Any] | None = None) -> Tensor:
        """Returns the logits of an uncached pass, the global generators seeded first."""
        return self.call(ids, mask=mask, options=options).logits

    def call(self, ids: Tensor, *, mask: Tensor | None = None, options: Mapping[str, Any] | None = None) -> ProbeResult:
        """Calls the model without a cache, the global generators seeded first.

        A model that draws from the global generator is thus comparable with itself here; that it draws at all is found by
        the check of the initial state.
        """
        torch.manual_seed(SEED)
        return self.call_unseeded(ids, mask=mask, options=options)

    def call_unseeded(self, ids: Tensor, *, mask: Tensor | None = None, options: Mapping[str, Any] | None = None) -> ProbeResult:
        """Calls the model without a cache, the global generators as they are."""
        arguments: dict[str, Any] = {}
        if self.offers("use_cache"):
            arguments["use_cache"] = False
        if mask is not None:
            arguments |= {"attention_mask": mask, **self._positions((mask.cumsum(1) - 1).clamp(min=0))}
        return self._answer(ids, {**arguments, **(options or {})})

    def cached_logits(self, ids: Tensor, chunks: list[int]) -> Tensor:
        """Returns the logits of a pass in chunks of these lengths, each after the cache of those before."""
        return torch.cat([answer.logits for answer in self.cached_answers(ids, [(length, {}) for length in chunks])], dim=1)

    def cached_answers(self, ids: Tensor, chunks: Sequence[tuple[int, Mapping[str, Any]]]) -> Iterator[ProbeResult]:
        """Yields the answers to chunks of these lengths, each with its own options, after the cache of those before."""
        self.need("past_key_values")
        torch.manual_seed(SEED)
        cache, start = None, 0
        for length, options in chunks:
            arguments: dict[str, Any] = {**({"use_cache": True} if self.offers("use_cache") else {}), **options}
            if cache is not None:
                arguments["past_key_values"] = cache
            arguments |= self._positions(torch.arange(start, start + length, device=self.device).expand(len(ids), -1))
            answer = self._answer(ids[:, start : start + length], arguments)
            if answer.cache is None:
                raise NotOfferedError("forward takes past_key_values, but returned none")
            cache, start = answer.cache, start + length
            yield answer

    @contextmanager
    def training(self) -> Iterator[None]:
        """Puts the model into training mode for a while."""
        self.model.train()
        try:
            yield
        finally:
            self.model.eval()

    def _answer(self, ids: Tensor, given: dict[str, Any]) -> ProbeResult:
        if self.depth is not None:
            given.setdefault("depth", self.depth)
        if "attention_mask" not in given and self._requires("attention_mask"):
            given["attention_mask"] = torch.ones_like(ids)
        output = self.model(input_ids=ids, **given) if self.offers("input_ids") else self.model(ids, **given)
        logits = find_logits(output)
        if logits.shape[:2] != ids.shape or logits.dim() != 3:
            raise ValueError(
                f"check: logits have shape {tuple(logits.shape)} for ids {tuple(ids.shape)}; allowed: {(*ids.shape, 'vocabulary')}"
            )
        if not logits.is_floating_point():
            raise TypeError(f"check: logits are {logits.dtype}; allowed: floating point")
        return ProbeResult(logits, find_loss(output), find_cache(output), find_steps(output))

    def _positions(self, positions: Tensor) -> dict[str, Tensor]:
        """Returns the explicit positions that a foreign model is owed; loopwright's finds its own."""
        return {"position_ids": positions} if self.offers("position_ids") and self.own is None else {}

    def _requires(self, name: str) -> bool:
        return self.offers(name) and self.parameters[name].default is inspect.Parameter.empty

    def _setting(self, name: str) -> Any:
        return getattr(self.config, name, None)

    def _usable_ids(self) -> Tensor:
        every = torch.arange(self.vocab_size)
        ordinary = torch.ones(self.vocab_size, dtype=torch.bool)
        for name in SPECIAL_NAMES:
            special = self._setting(name)
            for one in special if isinstance(special, list | tuple) else [special]:
                if isinstance(one, int) and 0 <= one < self.vocab_size:
                    ordinary[one] = False
        return every[ordinary] if int(ordinary.sum()) > 1 else every

    def _coarsest_dtype(self) -> torch.dtype:
        dtypes = [p.dtype for p in self.model.parameters() if p.is_floating_point()]
        return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


def forward_parameters(model: nn.Module) -> dict[str, inspect.Parameter]:
    """Returns the named arguments of a model's forward; raises where it needs one that a check cannot give."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = {n: p for n, p in inspect.signature(model.forward).parameters.items() if p.kind not in kinds}
    first = "input_ids" if "input_ids" in named else next(iter(named), None)
    strange = [n for n, p in named.items() if p.default is inspect.Parameter.empty and n not in (first, "attention_mask")]
    if strange:
        raise ValueError(f"check: forward needs {', '.join(strange)}; allowed: input ids, and arguments with defaults")
    return named


def find_vocab_size(model: nn.Module) -> int:
    """Returns the vocabulary size of a model's config, else of its input embedding; raises where neither says it."""
    config = getattr(model, "config", None)
    for settings in (config, getattr(config, "text_config", None)):
        size = getattr(settings, "vocab_size", None)
        if isinstance(size, int):
            return size
    getter = getattr(model, "get_input_embeddings", None)
    embeddings = [getter()] if callable(getter) else [m for m in model.modules() if isinstance(m, nn.Embedding)]
    if len(embeddings) == 1 and isinstance(embeddings[0], nn.Embedding):
        return embeddings[0].num_embeddings
    raise ValueError(
        f"check: vocab_size is unknown (no config.vocab_size, {len(embeddings)} embeddings in {type(model).__name__}); "
        "give check(model, vocab_size=…)"
    )


def find_logits(output: Any) -> Tensor:
    """Returns the logits of what a forward returned: a tensor, the first 3-d tensor of a tuple, or `.logits`."""
    logits = output
    if isinstance(output, tuple | list):
        logits = next((item for item in output if isinstance(item, Tensor) and item.dim() == 3), None)
    elif not isinstance(output, Tensor):
        logits = _field(output, "logits")
    if not isinstance(logits, Tensor):
        raise TypeError(
            f"check: forward returned {type(output).__name__} without logits; allowed: a tensor [B, T, vocabulary], a tuple that "
            "starts with one, or an object with .logits"
        )
    return logits


def find_loss(output: Any) -> Tensor | None:
    """Returns the loss of what a forward returned: `.loss`, or the scalar of a tuple."""
    if isinstance(output, tuple | list):
        return next((item for item in output if isinstance(item, Tensor) and item.dim() == 0), None)
    return None if isinstance(output, Tensor) else _field(output, "loss")


def find_cache(output: Any) -> Any:
    """Returns the cache of what a forward returned: `.past_key_values`, or what a tuple holds besides tensors."""
    if isinstance(output, tuple | list):
        return next((item for item in output if item is not None and not isinstance(item, Tensor)), None)
    return None if isinstance(output, Tensor) else _field(output, "past_key_values")


def find_steps(output: Any) -> tuple[Tensor, ...] | None:
    """Returns the logits of each step of what a forward returned: `.step_logits`."""
    logits = None if isinstance(output, Tensor | tuple | list) else _field(output, "step_logits")
    return None if logits is None else tuple(logits)


def _field(output: Any, name: str) -> Any:
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
