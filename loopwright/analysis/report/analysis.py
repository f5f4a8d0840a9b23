"""The page of an analysis, from a saved summary alone: what the model is, what it converges to, whose stages it has, is more depth
safe; each figure with one sentence on how to read it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from loopwright.analysis import figures as stages
from loopwright.analysis import figures as states
from loopwright.analysis.report.findings import Finding, converges, one_layer, percent, safe
from loopwright.analysis.report.findings import stages as stages_finding
from loopwright.analysis.report.page import Grid, Outcome, Picture, Section, Slider, count, write_report
from loopwright.plot.drawing import Drawing
from loopwright.storage.run import RunFolder

Metrics = Mapping[str, Any]
BETWEEN_LAYERS = ("same-and-farthest", "layer-paths", "limits-together")  # figures that say nothing of a core of one layer

# how to read each figure, by the name of its file
READ = {
    "stages-by-step": "Each line is one pass through the block, early steps blue, late ones red; lines on one another are "
    "stages that every step repeats.",
    "stages-realised": "Left to right the layers as they run; a layer whose own solid line is flat does the same at every step.",
    "stages-by-layer": "Each line is one layer over the steps, with one standard deviation over prompts; flat lines keep their "
    "stage however deep the pass.",
    "stages": "The layers from first to last: how much attention gathers on few tokens (ColSum, sink rates), how widely it is "
    "spread (mixing), how many directions the residual fills (entropy), how sure the next token is (logit lens).",
    "norms": "The size of the residual and its largest entry over the block; a jump is a massive activation.",
    "neurons": "Shares of neurons whose effect on the vocabulary raises (predict) or lowers (suppress) few tokens; weights alone, "
    "so no step changes them.",
    "halves": "The first half of the core (solid) and the second (dashed) laid over one another: where they agree, the block runs "
    "through its stages twice.",
    "changes": "How far each layer's residual and attention move from one step to the next; towards 0 (cosine: 1) the layer "
    "repeats itself. The bound, of the kind of Proposition 4.2, is how far its queries and keys let attention move.",
    "parts": "How far the gate is open after each step, mean over tokens and channels (0 keeps the old state, 1 takes the new), "
    "and the root mean square of the diagonals between an adapter's bases; the wider a band (one standard deviation over prompts), "
    "the more it depends on the input.",
    "fixed-points": "How far each layer is from where it stands after the last step; a line that reaches 0 (cosine: 1) early has "
    "come to rest.",
    "same-and-farthest": "The first layer against its own end and against the end of the layer farthest from it: lines apart are a "
    "cycle; lines that meet at cosine 1 mean that all layers rest at one point.",
    "pairs": "Every layer run against every other; diagonal stripes mean that a layer resembles itself at other steps more than "
    "its neighbours.",
    "cycles": "The last token's state after each layer in two directions, in windows of steps; one closed figure drawn over and "
    "over is a cyclic fixed point, a point alone is rest.",
    "layer-paths": "The same token at each layer on its own, early steps blue: a path that ends in one point is rest, one "
    "that goes round or back and forth an orbit.",
    "limits-together": "Of the tokens on which some layer does what the row says, the share on which some layer does what the "
    "column says.",
    "orbit": "The clearest orbit as the classifier saw it: cosine to the final step, its trend, the rest windowed, its spectrum.",
    "orbit-realised": "The stages of the prompt with that orbit over all layers in the order they run: an orbit that reaches "
    "attention shows as a wave in the solid lines.",
    "orbit-by-step": "The same prompt at the later half of the steps: lines on one another are stages that the orbit leaves alone.",
    "prompt-path": "The state of the whole first prompt, all its tokens at once, step by step from the start: blue at first, red "
    "at last; a path that stops has come to rest.",
    "spectrum": "Left, the leading eigenvalues of one step at the state reached: inside the dotted circle a small push dies out. "
    "Right, each step's change by that of the step before, for as long as rounding lets it be seen: below 1 the path contracts.",
    "answers": "What would be said next if the pass stopped after each step; the dotted line is the model's own depth.",
    "floorplan": "Mean attention of each layer on the first tokens of the first prompt (rows look, columns are looked at), later "
    "layers to the right and above; the same picture in every step is a cycle.",
    "floorplan-heads": "Single heads on the same tokens, a row per layer from the bottom up, a column per head: a head that looks "
    "elsewhere at each step breaks the cycle that the mean shows.",
}

# what the fold says that holds a figure
TITLES = {
    "stages-by-step": "Stages, step by step",
    "stages-realised": "Stages over all layers as they run",
    "stages-by-layer": "Stages of each layer over the steps",
    "stages": "Stages from first layer to last",
    "norms": "Sizes of the residual",
    "neurons": "Neurons that predict and suppress tokens",
    "halves": "The two halves of the core",
    "changes": "Change from one step to the next",
    "parts": "Gate and diagonals, step by step",
    "fixed-points": "Distance to the last state",
    "same-and-farthest": "The first layer against its own end and the farthest layer's",
    "pairs": "Every layer run against every other",
    "cycles": "Path through the layers, in windows of steps",
    "layer-paths": "Path of each layer",
    "limits-together": "What occurs together",
    "orbit": "The clearest orbit",
    "orbit-realised": "Stages of that orbit over all layers",
    "orbit-by-step": "Stages of that orbit, step by step",
    "prompt-path": "Path of the whole first prompt",
    "spectrum": "Eigenvalues of a step",
    "answers": "Answers by step",
    "floorplan": "Attention of every layer",
    "floorplan-heads": "Attention of single heads",
}

# words that a reader may not know, each with a word of a page that uses it
WORDS = {
    "ColSum": "How unevenly a layer's tokens are looked at, from the entropy of what each receives, mean over heads: 0 all alike, "
    "1 one token takes everything.",
    "sink": "A token, mostly the first, that takes much of the attention and gives little.",
    "mixing": "The entropy of the attention rows in nats: how widely a token looks around.",
    "logit lens": "What would be predicted if the residual at a layer went straight to the output.",
    "fixed point": "A state that a further step does not change.",
    "orbit": "A state that comes back again and again without coming to rest.",
    "slide": "A slider: a state that keeps moving in one direction, further with every step.",
    "ρ": "The spectral radius: by how much one step stretches a small push at most, in the long run. Below 1 it dies out.",
    "Proposition 4.2": "Of the mechanistic analysis of looped models: attention can move from one step to the next by no more than "
    "its queries and keys do.",
}

# what is said besides where a picture shows it: a word of its legend or labels, and the sentence
MORE: dict[str, tuple[tuple[str, ...], str]] = {
    "stages-by-step": ((">dense model<",), "The dashed line is the dense model."),
    "fixed-points": ((">cosine to farthest<",), "On the right the same to where the layer farthest from it ends."),
    "floorplan": ((">prelude<", ">coda<"), "Layers that run once are framed, prelude blue and coda red."),
    "floorplan-heads": ((">prelude<", ">coda<"), "Prelude is framed blue, coda red."),
}

# and where a model has no core
READ_DENSE = {
    "floorplan": "Mean attention of each layer on the first tokens of the first prompt (rows look, columns are looked at), later "
    "layers to the right and above; a bright first column is a sink.",
    "floorplan-heads": "Single heads on the same tokens, a row per layer from the bottom up, a column per head.",
    "pairs": "Every layer against every other; bright blocks are runs of layers that do alike.",
    "neurons": "Shares of neurons whose effect on the vocabulary raises (predict) or lowers (suppress) few tokens; weights alone, "
    "no prompt changes them.",
}


def write_analysis(
    metrics: Metrics,
    folder: str | Path,
    *,
    dense: Metrics | None = None,
    footer: str = "",
    said: Slider | None = None,
    made: Sequence[tuple[str, str]] = (),
) -> Path:
    """Draws every figure of a summary into `folder`/figures, writes `folder`/report.html, and returns the page.

    `said` is what would be said next at each depth; `made` tells how the page came to be.
    """
    folder = Path(folder)
    pictures = draw_all(metrics, dense)
    for name, drawing in pictures.items():
        drawing.save(folder / "figures" / f"{name}.svg")
    model, depth = metrics["model"], safe(metrics)
    outcome = Outcome(depth.good, f"“More depth is safe”: {depth.reason}", depth.numbers)
    if not metrics["places"]["core"]:  # nothing is looped: it opens with what its layers do
        seen = stages_finding(metrics, dense)
        outcome = Outcome(None, seen.reason[:1].upper() + seen.reason[1:], seen.numbers, f"{seen.answer}.")
    steps = count(metrics["places"]["steps"], "step") if metrics["places"]["core"] else "each layer once"
    lead = f"{count(metrics['examples'], 'prompt')}, {count(metrics['tokens'], 'token')}, {steps}."
    return write_report(
        folder / "report.html",
        f"Inside {model['name']}",
        [*([] if said is None else [_said(said)]), *sections(metrics, dense, pictures)],
        outcome=outcome,
        lead=lead,
        footer=footer,
        made=made,
    )


def draw_all(metrics: Metrics, dense: Metrics | None = None) -> dict[str, Drawing]:
    """Returns every figure that a summary holds the numbers of, by name."""
    places = metrics["places"]
    drawings = {}
    if not one_layer(metrics):  # a line over the layers of a block needs two
        drawings["stages-by-step" if places["core"] else "stages"] = stages.by_step(metrics, dense=dense)
        drawings["norms"] = stages.by_step(metrics, ("norm", "largest"), dense=dense)
        drawings["neurons"] = stages.neurons(metrics, dense=dense)
    if places["core"] and places["steps"] > 1:
        drawings["stages-realised"] = stages.realised(metrics)
        drawings["stages-by-layer"] = stages.by_layer(metrics)
        for name in ("changes", "fixed-points"):
            drawings[name] = stages.STAGE_FIGURES[name](metrics)
        if stages.has_parts(metrics):
            drawings["parts"] = stages.parts(metrics)
        if places["core"] > 3:
            drawings["halves"] = stages.halves(metrics, dense=dense)
    for name, (needed, draw) in states.STATE_FIGURES.items():
        if needed in metrics and (places["core"] > 1 or name not in BETWEEN_LAYERS):
            drawings[name] = draw(metrics)
    if "orbit" in metrics.get("limits", {}):
        drawings["orbit"] = states.orbit_parts(metrics)
        drawings["orbit-realised"], drawings["orbit-by-step"] = stages.orbit_realised(metrics), stages.orbit_by_step(metrics)
    return drawings


def figures(source: Metrics | str | Path, dense: Metrics | str | Path | None = None) -> dict[str, Drawing]:
    """Returns every figure of an analysis by name; `lw.figures("runs/analyze-x")["stages-by-step"].save("stages.png")`.

    Args:
        source: the folder that `loopwright analyze` wrote, its file of numbers, or the numbers themselves.
        dense: those of a dense model to lay beside it, where the folder has none.
    """
    metrics = _numbers(source)
    if dense is None and not isinstance(source, Mapping):
        beside = RunFolder(source).metrics / "analysis-dense.json"
        dense = beside if beside.is_file() else None
    return draw_all(metrics, None if dense is None else _numbers(dense))


def _numbers(source: Metrics | str | Path) -> Metrics:
    if isinstance(source, Mapping):
        return source
    path = Path(source)
    path = RunFolder(path).metrics / "analysis.json" if path.is_dir() else path
    if not path.is_file():
        wrong = f"holds no {path.name}" if Path(source).is_dir() else "is no folder"
        raise ValueError(f"figures: {source} {wrong}; give a folder that `loopwright analyze` wrote")
    return json.loads(path.read_text())


def caption(name: str, svg: str, looped: bool) -> str:
    """Returns how to read a figure, and no word of what it does not show."""
    said = (READ if looped else READ | READ_DENSE)[name]
    signs, more = MORE.get(name, ((), ""))
    return f"{said} {more}" if looped and any(sign in svg for sign in signs) else said


def sections(metrics: Metrics, dense: Metrics | None, pictures: Mapping[str, str]) -> list[Section]:
    """Returns the page's sections in the order of the questions."""

    looped = bool(metrics["places"]["core"])

    def part(heading: str, finding: Finding | None, *names: str, tables: tuple[Grid, ...] = ()) -> list[Section]:
        there = [name for name in names if name in pictures]
        shown = [Picture(pictures[name], caption(name, pictures[name], looped), TITLES[name]) for name in there]
        if not shown and not tables:
            return []
        said = ("", ()) if finding is None else (finding.sentence, finding.numbers)
        return [Section(heading, said[0], shown[:1], tables, said[1], more=shown[1:])]

    chapters = [Section("What this model is", "", (), [_card(metrics, dense)])]
    if looped:
        chapters += part(
            "Does it converge, and to what?", converges(metrics),
            "fixed-points", "same-and-farthest", "cycles", "layer-paths", "prompt-path", "changes", "parts", "pairs",
            "limits-together",
            "orbit", "orbit-realised", "orbit-by-step", tables=_limits(metrics),
        )  # fmt: skip
    asked = "Are its stages those of a feedforward model?" if looped else "Its stages"
    chapters += part(
        asked,
        stages_finding(metrics, dense) if looped else None,  # that of a dense model stands at the head of the page
        "stages-by-step",
        "stages",
        "stages-realised",
        "halves",
        "norms",
        "neurons",
        "floorplan",
        "floorplan-heads",
        *([] if looped else ["pairs"]),
    )
    if looped:
        depth = replace(safe(metrics), numbers=())  # they stand at the head of the page
        chapters += part("Is more depth safe?", depth, "answers", "stages-by-layer", "spectrum", tables=_spectrum(metrics))
    text = " ".join([*(s.prose for s in chapters), *(p.caption + p.svg for s in chapters for p in [*s.pictures, *s.more])])
    words = [(word, meaning) for word, meaning in WORDS.items() if word in text]
    return [*chapters, Section("Words", words=words)] if words else chapters


def _said(slider: Slider) -> Section:
    return Section("What it would say next", "The most probable next token of each prompt if the pass stopped at the depth of the "
                   "slider; marked by whether it is that of the model's own depth.", sliders=[slider])  # fmt: skip


def _card(metrics: Metrics, dense: Metrics | None) -> Grid:
    def facts(whole: Metrics) -> dict[str, str]:
        about = whole["model"]
        layers = about["layers"]
        looped = f"{layers['prelude']} + {layers['core']} looped + {layers['coda']}"
        once = {
            "parameters": f"{about['parameters']:,}",
            "layers": looped if about["looped"] else str(sum(layers.values())),
            "width": f"{about['width']} ({count(about['heads'], 'head')})",
            "norms": about["norms"],
        }
        loop = {
            "steps by default": str(about["depth"]),
            "norm after a step": about["end_norm"],
            "input injection": about["injection"],
            "start state": about["state"],
        }
        last = {"dtype": about["dtype"], "edited": about["edited"] or "nothing", "largest residual entry": _largest(whole)}
        return once | (loop if about["looped"] else {}) | last

    columns = [facts(each) for each in (metrics, *([] if dense is None else [dense]))]
    names = list(columns[0])  # a dense model beside it has no loop to tell of
    head = ["", metrics["model"]["name"]] + ([] if dense is None else [dense["model"]["name"]])
    return Grid(head, [[name, *(each.get(name, "–") for each in columns)] for name in names])


def _largest(metrics: Metrics) -> str:
    """Says how large the largest entry is, mean over prompts, and after how many layers as they run."""
    values = {place: value for place, value in enumerate(metrics["by_place"]["largest"]["mean"]) if value is not None}
    if not values:
        return "no number"
    place = max(values, key=values.__getitem__)
    return f"{values[place]:,.4g} after layer {place + 1}"


def _limits(metrics: Metrics) -> tuple[Grid, ...]:
    if "limits" not in metrics:
        return ()
    limits = metrics["limits"]
    rows = [
        ["tokens", *map(percent, limits["tokens"])],
        ["prompts with any", *map(percent, limits["examples"])],
    ]
    said = "At the last layer of the core, by similarity to the final step."
    return (Grid(["settles into", *limits["labels"]], rows, " ".join([said, *_orbits_and_layers(limits)])),)


def _orbits_and_layers(limits: Metrics) -> list[str]:
    """Returns what is said of orbits and of the other layers; nothing where a summary is older than the numbers."""
    said = []
    if "orbits" in limits:
        orbits = limits["orbits"]
        orbit = f"{count(orbits['tokens'], 'token')} orbit{'s' if orbits['tokens'] == 1 else ''}"
        size = f"amplitude {orbits['median_amplitude']:.2f} (median; largest {orbits['largest_amplitude']:.2f})"
        said.append(f"There {orbit}, with {size} and {orbits['median_frequency']:.2f} turns a step (median).")
    rests = [rates[0] for rates in limits.get("by_layer", {"tokens": ()})["tokens"]]
    if len(rests) > 1:
        least, most = (f"{percent(end(rests))} (layer {rests.index(end(rests))})" for end in (min, max))
        alike = f"At every layer {percent(rests[0])} of tokens rest."
        said.append(alike if least == most else f"By layer, from {least} to {most} of tokens rest.")
    return said


def _spectrum(metrics: Metrics) -> tuple[Grid, ...]:
    if "spectrum" not in metrics:
        return ()
    spectra = metrics["spectrum"]
    rows = [
        [str(depth), "–" if radius is None else f"{radius:.3f}", "–" if turn is None else f"{turn:.3f}"]
        for depth, radius, turn in zip(spectra["depths"], spectra["radius"], spectra["frequency"], strict=True)
    ]
    return (
        Grid(
            ["after steps", "spectral radius ρ", "turns per step"],
            rows,
            "Of one step's derivative at the state reached, first prompt.",
        ),
    )
