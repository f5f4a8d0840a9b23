"""What a model shows on GSM8K and HellaSwag: a row for each set of prompts and way of looking, as plain numbers.

near      stages at the model's own depth, with residual entropy (Figures 8, 35–39; 42–46 on HellaSwag)
ablated   the same with the MLP output zeroed at the layer where the largest entry of the residual grows most (Figure 41)
deep      stages, norms and points of rest over 128 steps (Figures 11, 12, 47–53), of a looped model on GSM8K
pairs     all pairs of layers over 32 steps (Figures 20, 21): a figure, and in numbers how far apart steps of a layer are, and
          layers; of a looped model on GSM8K
bound     Proposition 4.2's own bound over 128 steps, of a looped model on GSM8K
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.inside.stages.bound import bounds
from experiments.pages import save_all
from experiments.side_by_side import made_by
from experiments.thin import rounded
from loopwright.analysis.figures import pair_matrices
from loopwright.analysis.summary import summarise
from loopwright.analysis.trace.edit import ablate_massive
from loopwright.analysis.trace.places import Places
from loopwright.analysis.trace.record import pad
from loopwright.analysis.trace.single_prompt import PAIR_PROMPTS, compare_pairs
from loopwright.analysis.trace.trace import Trace, trace
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.taps import Tap

SETS = ("gsm8k", "hellaswag")
FIRST = SETS[0]
NEAR = ("colsum", "mixing", "sink_rate", "any_sink_rate", "entropy", "norm", "largest")
DEEP = ("colsum", "mixing", "sink_rate", "norm")
DIGITS = 4

Rows = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Sizes:
    """How much is looked at: prompts of a set, of those the ones that run deep, and steps of a deep pass, of pairs."""

    examples: int = 64
    deep_examples: int = 64
    deep: int = 128
    pairs: int = 32
    batch: int = 16


def read_rows(tokenizer: Any, name: str, data: str, examples: int) -> list[list[int]]:
    """Returns the prompts of a set in a model's own tokens, with what its tokenizer opens any text with, short ones first."""
    from loopwright.analysis.study import read_prompts

    texts = [str(prompt) for prompt in read_prompts(name, data=data, examples=examples)]
    return sorted(([*tokenizer.opening, *row] for row in tokenizer.encode(texts)), key=len)


def traces(
    model: LoopedForCausalLM, rows: Rows, depth: int | None, *, collect: Sequence[str], batch: int, edit: Tap | None = None
) -> Iterator[Trace]:
    """Yields the trace of each prompt."""
    for start in range(0, len(rows), batch):
        ids, mask = pad(rows[start : start + batch], model.device)
        yield from trace(model, ids, depth, attention_mask=mask, collect=collect, edit=edit).examples()


def near(model: LoopedForCausalLM, rows: Rows, batch: int, edit: Tap | None = None) -> dict[str, Any]:
    """Returns the stages at the model's own depth: means and spreads over prompts."""
    own = model.config.depth if model.config.is_looped else None
    found = summarise(traces(model, rows, own, collect=("attention", "residual", "entropy"), batch=batch, edit=edit))
    by_place = {name: rounded(found["by_place"][name], DIGITS) for name in NEAR}
    return {"places": found["places"], "examples": found["examples"], "tokens": found["tokens"], "by_place": by_place}


def deep(model: LoopedForCausalLM, rows: Rows, sizes: Sizes) -> dict[str, Any]:
    """Returns stages and points of rest far beyond the model's own depth."""
    stages = ("attention", "residual", "lens", "fixed")
    found = summarise(traces(model, rows, sizes.deep, collect=stages, batch=sizes.batch), answer_depth=model.config.depth)
    means = {name: {"mean": rounded(found["by_place"][name]["mean"], DIGITS)} for name in DEEP}
    for name in DEEP:
        means[name]["std"] = rounded(found["by_place"][name]["std"], DIGITS - 2)
    limits = {name: value for name, value in found.get("limits", {}).items() if name not in ("orbit", "together", "by_layer")}
    answers = {name: found["answers"][name] for name in ("depth", "kept")}
    return {
        "places": found["places"], "examples": found["examples"], "tokens": found["tokens"], "by_place": means, "limits": limits,
        "convergence": found.get("convergence", {}), "answers": answers,
    }  # fmt: skip


def massive_layer(summary: Mapping[str, Any]) -> int:
    """Returns the layer, counted through prelude and the first step of the core, after which the largest entry grew most."""
    places = Places(**summary["places"])
    largest = [0.0, *summary["by_place"]["largest"]["mean"][: places.prelude + places.core]]
    return max(range(len(largest) - 1), key=lambda layer: largest[layer + 1] - largest[layer])


def same_and_other(pairs: Mapping[str, Any], places: Places) -> dict[str, Any]:
    """Returns the mean attention distance and residual cosine between steps of the same layer of the core, and between layers of
    it, from all pairs."""
    layer = torch.arange(places.core).repeat(places.steps)
    step = torch.arange(places.steps).repeat_interleave(places.core)
    same = (layer[:, None] == layer) & (step[:, None] != step)
    found = {}
    for name in ("attention", "residual"):
        core = torch.tensor(pairs[name], dtype=torch.float64)[places.looped, places.looped]
        found[name] = {"same": core[same].mean().item(), "other": core[layer[:, None] != layer].mean().item()}
    return found


@dataclass(frozen=True)
class Subject:
    """A model with its prompts: by set, and those that run deep."""

    name: str
    model: LoopedForCausalLM
    rows: Mapping[str, Rows]
    some: Rows
    sizes: Sizes
    figures: Path


def stage_rows(subject: Subject) -> Iterator[dict[str, Any]]:
    """Yields the stages on each set at the model's own depth."""
    for name, rows in subject.rows.items():
        yield {"set": name, **near(subject.model, rows, subject.sizes.batch)}


def ablated_rows(subject: Subject) -> Iterator[dict[str, Any]]:
    """Yields the stages without the MLP that makes the largest entry, which is found on a few prompts."""
    model, batch = subject.model, subject.sizes.batch
    layer = massive_layer(near(model, subject.rows[FIRST][:PAIR_PROMPTS], batch))
    yield {"set": FIRST, "layer": layer, **near(model, subject.rows[FIRST], batch, ablate_massive(model.config, layer))}


def deep_rows(subject: Subject) -> Iterator[dict[str, Any]]:
    """Yields what lies beyond the model's own depth."""
    yield {"set": FIRST, **deep(subject.model, subject.some, subject.sizes)}


def pair_rows(subject: Subject) -> Iterator[dict[str, Any]]:
    """Yields how near pairs of layers are, and draws them."""
    pairs = compare_pairs(subject.model, subject.some[:PAIR_PROMPTS], steps=subject.sizes.pairs)
    save_all({f"pairs-{subject.name}": pair_matrices({"pairs": pairs})}, subject.figures)
    near = same_and_other(pairs, Places.of(subject.model.config, pairs["steps"]))
    yield {"set": FIRST, "steps": pairs["steps"], "prompts": pairs["prompts"], **near}


def bound_rows(subject: Subject) -> Iterator[dict[str, Any]]:
    """Yields the proposition's bound beside what happens."""
    steps = subject.sizes.deep
    yield {"set": FIRST, "steps": steps, **bounds(subject.model, subject.some[:PAIR_PROMPTS], steps)}


LOOKS = {"near": stage_rows, "ablated": ablated_rows, "deep": deep_rows, "pairs": pair_rows, "bound": bound_rows}
OF_DENSE = ("near", "ablated")  # a dense model has no steps
SETS_OF = {"near": SETS}  # the others look at the first alone


def measured(
    source: str, looks: Sequence[str], *, data: str, sizes: Sizes, device: str, figures: Path, done: Collection[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yields the rows of one model, each with its name and how long it took; of a dense model those that it has. Looks all of whose
    rows are `done`, by name, are left out."""
    import loopwright as lw
    from loopwright.data.tokenizer import Tokenizer

    model, tokenizer, name = lw.load(source, dtype="float32", device=device), Tokenizer(source), Path(source).name
    rows = {each: read_rows(tokenizer, each, data, sizes.examples) for each in SETS}
    subject = Subject(name, model, rows, read_rows(tokenizer, FIRST, data, sizes.deep_examples), sizes, figures)
    about = made_by()
    for look in (look for look in looks if model.config.is_looped or look in OF_DENSE):
        if {f"{name}/{look}/{each}" for each in SETS_OF.get(look, (FIRST,))} <= {*done}:
            continue
        began = time.perf_counter()
        for row in LOOKS[look](subject):
            taken, began = time.perf_counter() - began, time.perf_counter()
            yield {"name": f"{name}/{look}/{row['set']}", "model": name, "look": look, **row, "seconds": taken, "origin": about}
