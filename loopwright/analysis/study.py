"""An analysis from end to end: prompts in, a summary as one JSON file out, from which figures and the report are drawn; and how
much memory it takes, before it starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from loopwright.analysis.summary import PUBLISHED, LimitOptions, summarise
from loopwright.analysis.trace.collect import CHUNK
from loopwright.analysis.trace.places import Places
from loopwright.analysis.trace.record import OutOfMemory, is_full, trace_prompts
from loopwright.analysis.trace.single_prompt import (
    PAIR_PROMPTS,
    PAIR_STEPS,
    compare_pairs,
    floor_steps,
    floorplan,
    floorplan_heads,
    neuron_shares,
    spectrum,
    state_paths,
)
from loopwright.analysis.trace.trace import check_lengths, trace_depth
from loopwright.data.records import SUFFIXES, Files, text_field
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.model.cost import inference_bytes, weight_bytes
from loopwright.model.taps import Tap
from loopwright.schema import suggest
from loopwright.untrusted import user_path

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Subject:
    """A model to look into, the name to call it by, and its prompts as token rows."""

    name: str
    model: LoopedForCausalLM
    rows: Sequence[Sequence[int]]


def study(
    subject: Subject,
    folder: str | Path,
    *,
    depth: int | None = None,
    batch: int = 8,
    pairs: int = PAIR_STEPS,
    edit: Tap | None = None,
    edited: str = "",
    limits: LimitOptions = PUBLISHED,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Returns the summary of a model over its prompts; traces lie in `folder`, and what is already there is not made again.

    `pairs` are the steps of which all pairs of depths are compared, 0 for none. `edited` says in words what `edit` does: it is
    part of what the numbers depend on. `limits` says how tokens are classified.
    """
    model, rows = subject.model, subject.rows
    check_weights(subject)
    check_lengths(model.config, rows)
    about = {"model": subject.name, "edited": edited, **_other_start(model)}
    tell = progress or (lambda what, done, total: None)
    traces = trace_prompts(
        model, rows, folder,
        depth=depth, batch=batch, about=about, edit=edit, progress=lambda done, total: tell("traces", done, total),
    )  # fmt: skip
    config = model.config
    summary = {
        **_about(subject, edited),
        **summarise(traces, answer_depth=config.depth if config.is_looped else None, limits=limits),
    }
    summary["neurons"] = neuron_shares(model)
    try:
        return summary | _of_first_prompts(model, rows, trace_depth(config, depth), pairs=pairs, edit=edit, tell=tell)
    except RuntimeError as error:
        if not is_full(error):
            raise
        raise OutOfMemory(
            f"analysis: out of memory at all pairs over {pairs} steps or at a path, of one prompt; "
            f"all {len(rows)} traces are kept; take fewer pairs (0: none), a shorter first prompt or less depth"
        ) from None


def check_weights(subject: Subject) -> None:
    """Raises a ValueError where a weight is not finite: states that grow without end are a finding, weights like that are none."""
    odd = next((name for name, x in subject.model.named_parameters() if not bool(x.isfinite().all())), None)
    if odd is not None:
        raise ValueError(f"{subject.name}: {odd} is not finite, so there is nothing to analyze; take a checkpoint that is whole")


def _of_first_prompts(
    model: LoopedForCausalLM, rows: Sequence[Sequence[int]], depth: int, *, pairs: int, edit: Tap | None, tell: Progress
) -> dict[str, Any]:
    """Returns what is seen of the first prompt alone, and of the first few the pairs of depths."""
    config, results = model.config, dict[str, Any]()
    ids = torch.tensor([list(rows[0])], device=model.device)
    if pairs:
        tell("pairs of depths", 0, 1)
        results["pairs"] = compare_pairs(model, rows[:PAIR_PROMPTS], steps=min(pairs, depth), edit=edit)
    shown = floor_steps(config, depth)
    if shown:
        results["floorplan"] = floorplan(model, ids, steps=shown, edit=edit)
    heads = floorplan_heads(model, ids, depth, edit=edit)
    results |= {"floorplan_heads": heads} if heads else {}
    if config.is_looped and depth > 1:
        tell("paths and spectrum", 0, 1)
        path = state_paths(model, ids, depth, edit=edit)
        results |= {"path": path} if path else {}
        if model.dtype == torch.float32:
            results["spectrum"] = spectrum(model, ids, sorted({1, min(config.depth, depth), depth}), edit=edit)
    return results


def _other_start(model: LoopedForCausalLM) -> dict[str, int]:
    """The seed of the first state, where it is not the config's own."""
    own = model.config.state.get("seed", 0)
    return {"state_seed": model.state.seed} if model.state.seeded and model.state.seed != own else {}


def _about(subject: Subject, edited: str) -> dict[str, Any]:
    config, model = subject.model.config, subject.model
    norms = config.norm_placement if isinstance(config.norm_placement, str) else ", ".join(config.norm_placement)
    return {
        "model": {
            "name": subject.name,
            "parameters": sum(p.numel() for p in model.parameters()),
            "looped": config.is_looped,
            "depth": config.depth if config.is_looped else 1,
            "layers": {"prelude": config.prelude_layers, "core": config.core_layers, "coda": config.coda_layers},
            "width": config.hidden_size,
            "heads": config.num_attention_heads,
            "norms": norms,
            "end_norm": config.end_norm,
            "state": config.state["kind"],
            "injection": config.injection["kind"],
            "dtype": str(model.dtype).removeprefix("torch."),
            "edited": edited,
            **_other_start(model),
        }
    }


# the files of a set that are looked for in the data folder, in this order, and the field that holds the prompt
SETS: dict[str, tuple[tuple[str, ...], str]] = {
    "gsm8k": (("gsm8k_test", "gsm8k"), "question"),
    "hellaswag": (("hellaswag_val", "hellaswag_validation", "hellaswag"), "ctx"),
}
FIELDS = ("tokens", "prompt", "text", "question", "ctx")  # of a .jsonl file, the first that is there
DATA = "LOOPWRIGHT_DATA"  # names the data folder where no option does

Prompt = str | list[int]


def read_prompts(
    source: str, *, data: str | None = None, examples: int | None = None, seed: int = 0, environment: Mapping[str, str] = os.environ
) -> list[Prompt]:
    """Returns the prompts of a source: of a .jsonl file (fields as FIELDS; "tokens" are ids, which need no tokenizer), a line each
    of a .txt file, a named set out of the `data` folder, or the source itself as the one prompt.

    Of more than `examples` prompts, that many are drawn, in their order: a pure function of the seed.
    """
    if source in SETS:
        path, field = _find(source, data or environment.get(DATA))
        prompts = _of_file(path, (field,))
    elif _is_path(source):
        prompts = _of_file(user_path(source), FIELDS)
    elif _is_word(source) and get_close_matches(source, SETS):
        raise ValueError(f"prompts: {source!r} is no file and no set; {suggest(source, SETS)}, a file, or a text of more words")
    elif source.strip():
        prompts = [source]
    else:
        raise ValueError("prompts: an empty text; allowed: a file, a text, " + ", ".join(SETS))
    if not prompts:
        raise ValueError(f"prompts: {source} holds no prompt; allowed: at least one line that is not empty")
    return [prompts[i] for i in drawn(len(prompts), examples, seed)]


def drawn(count: int, examples: int | None, seed: int) -> list[int]:
    """Returns which of `count` prompts are taken, in their order: all of them, or `examples` that the seed decides."""
    if examples is not None and examples < 1:
        raise ValueError(f"examples: {examples}; allowed: at least 1")
    if examples is None or examples >= count:
        return list(range(count))
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:examples].sort().values.tolist()


def _is_path(source: str) -> bool:
    try:
        there = Path(source).expanduser().is_file()
    except (OSError, ValueError, RuntimeError):  # too long for a name, a letter no name has, no such user
        there = False
    return there or (
        _is_word(source) and source.endswith(SUFFIXES)
    )  # what has spaces and is no file is a text, whatever it ends with


def _is_word(source: str) -> bool:
    return not any(letter.isspace() for letter in source)


def _find(name: str, folder: str | None) -> tuple[Path, str]:
    stems, field = SETS[name]
    wanted = [f"{stem}{suffix}" for stem in stems for suffix in (".jsonl", ".jsonl.gz")]
    if folder is None:
        raise ValueError(
            f"prompts: {name} lies in no known folder; give --data FOLDER (or {DATA}) with {stems[0]}.jsonl or .jsonl.gz"
        )
    there = next((path for path in (user_path(folder) / file for file in wanted) if path.is_file()), None)
    if there is None:
        raise FileNotFoundError(f"prompts: {folder} holds no {name}; looked for: {', '.join(wanted)}")
    return there, field


def _of_file(path: Path, fields: Sequence[str]) -> list[Prompt]:
    if not path.is_file():
        raise FileNotFoundError(f"prompts: {path}: there is no such file")
    prompts: list[Prompt] = []
    for record in Files(str(path), separator="\n"):
        where, given = record
        field = next((name for name in fields if name in given), fields[0] if len(fields) == 1 else "text")
        if field == "tokens":
            tokens = given["tokens"]
            if not isinstance(tokens, list) or not tokens or not all(type(n) is int and n >= 0 for n in tokens):
                raise ValueError(f"{where}: 'tokens' is no list of token ids; allowed: whole numbers of at least 0, one or more")
            prompts.append(tokens)
            continue
        text = text_field(record, field)
        if text is not None:
            prompts.append(text)
    return prompts


MAPS = 4  # of a chunk's size: scores, maps, those of the step before, and what is between


def trace_bytes(config: LoopedConfig, *, batch: int, length: int, depth: int, dtype: torch.dtype) -> dict[str, int]:
    """Returns an estimate of the most bytes alive at once in a trace with everything gathered, by part.

    weights; the pass itself; what is held of one step to compare the next with: residual, queries and keys of each core layer,
    and what its lens said, and those of the farthest layer, picked row by row; the maps of one layer; the numbers, which alone
    grow with depth.
    """
    places = Places.of(config, depth)
    tokens, heads, vocabulary = batch * length, config.num_attention_heads, config.vocab_size
    held = config.hidden_size + (heads + config.num_key_value_heads) * config.head_dim
    maps = min(CHUNK, tokens * heads * length) * 4 * MAPS
    numbers = batch * places.count * (6 * heads + 16) * 4 + tokens * places.count * 2
    return {
        "weights": weight_bytes(config, dtype),
        "pass": inference_bytes(config, batch=batch, context=length, dtype=dtype)["blocks"],
        "held": tokens * held * (config.core_layers + 2) * dtype.itemsize + batch * vocabulary * (config.core_layers + 3) * 4,
        "maps": maps,
        "numbers": numbers,
    }


def fitting_batch(config: LoopedConfig, *, batch: int, length: int, depth: int, dtype: torch.dtype, free: int) -> int:
    """Returns the largest batch up to `batch` whose estimate fits into `free` bytes beside the weights; 0 where none does."""

    def fits(size: int) -> bool:
        parts = trace_bytes(config, batch=size, length=length, depth=depth, dtype=dtype)
        return sum(parts.values()) - parts["weights"] <= free

    return next((size for size in range(batch, 0, -1) if fits(size)), 0)
