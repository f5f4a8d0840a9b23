"""An analysis from end to end: prompts in, a summary as one JSON file out, from which figures and the report are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from loopwright.analysis.summary import PUBLISHED, LimitOptions, summarise
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
from loopwright.model.looped import LoopedForCausalLM
from loopwright.model.tap import Tap

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
        return summary | _closeups(model, rows, trace_depth(config, depth), pairs=pairs, edit=edit, tell=tell)
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


def _closeups(
    model: LoopedForCausalLM, rows: Sequence[Sequence[int]], depth: int, *, pairs: int, edit: Tap | None, tell: Progress
) -> dict[str, Any]:
    """Returns what is seen of the first prompt alone, and of the first few the pairs of depths."""
    config, closeups = model.config, dict[str, Any]()
    ids = torch.tensor([list(rows[0])], device=model.device)
    if pairs:
        tell("pairs of depths", 0, 1)
        closeups["pairs"] = compare_pairs(model, rows[:PAIR_PROMPTS], steps=min(pairs, depth), edit=edit)
    shown = floor_steps(config, depth)
    if shown:
        closeups["floorplan"] = floorplan(model, ids, steps=shown, edit=edit)
    heads = floorplan_heads(model, ids, depth, edit=edit)
    closeups |= {"floorplan_heads": heads} if heads else {}
    if config.is_looped and depth > 1:
        tell("paths and spectrum", 0, 1)
        path = state_paths(model, ids, depth, edit=edit)
        closeups |= {"path": path} if path else {}
        if model.dtype == torch.float32:
            closeups["spectrum"] = spectrum(model, ids, sorted({1, min(config.depth, depth), depth}), edit=edit)
    return closeups


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
