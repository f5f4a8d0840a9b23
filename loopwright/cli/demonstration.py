"""`loopwright demo`: two small models learn to add, one the plain way and one the stable way; what happens beyond the depth they
were trained at, as a page to look at."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from loopwright.analysis.report.page import Grid, Outcome, Picture, Section, Slider, write_report
from loopwright.cli.console import console
from loopwright.cli.results import how_made, need_writable
from loopwright.data.tasks.task import EOS, PAD, Table
from loopwright.evaluation.by_depth import SweepReport, sweep
from loopwright.metrics.states import pca_path
from loopwright.plot.figures import Curve, accuracy_by_depth, loss_curves, radius_by_depth, state_paths
from loopwright.process import fitting_threads
from loopwright.recipes import recipe
from loopwright.schema import build_kind
from loopwright.storage.folder import check_out
from loopwright.storage.run import RunFolder
from loopwright.training.depth import RULES
from loopwright.training.loop import train
from loopwright.training.recipe import Recipe
from loopwright.training.report import Run as Trained
from loopwright.training.report import Terminal
from loopwright.training.validation import measure
from loopwright.untrusted import shown

RECIPES = {"plain": "demo-plain", "stable": "demo-stable"}
BEYOND = 16  # times the median training depth: where the claim is judged
BAR = 0.99  # exact match that the stable model must keep
LOST = 0.5  # and below which the plain one has lost what it knew
WORDS = {True: "Shown.", False: "Not so in this run.", None: "Not shown in this run."}
MARKS = {True: "✓", False: "✗", None: "?"}
MARK, REPORT = ".loopwright-demo", "report.html"
SUMS = 6  # that are shown with their answers


@dataclass(frozen=True)
class Story:
    """One model of the demo: its recipe, how its training ended and what was measured."""

    recipe: Recipe
    trained: Trained
    report: SweepReport
    radius: dict[int, dict[str, float]]
    seconds: float
    median: int


def demo(out: str | None = None, *, toy: bool = False) -> bool:
    """Trains both, measures, writes the report; returns whether the plain one collapsed and the stable one held."""
    folder = _fresh(Path(out or ("runs/demo-toy" if toy else "runs/demo")))
    began = time.perf_counter()
    stories = {name: tell(name, folder, toy=toy) for name in RECIPES}
    printer = console()
    for story in stories.values():
        printer.print(story.report.table(printer.width))
    path = write(folder, stories, time.perf_counter() - began)
    outcome = judge(stories)
    printer.print(f"{WORDS[outcome.holds]} {outcome.sentence}", markup=False)
    printer.print(f"report: {path.resolve()}", markup=False, soft_wrap=True)
    return outcome.holds is True


def _fresh(folder: Path) -> Path:
    """Returns an empty folder for the demo; an earlier demo makes room, unless it still runs; anything else is left alone."""
    check_out("demo", folder, None, "an earlier demo")
    need_writable("demo", folder)
    if folder.exists() and any(folder.iterdir()):
        others = {path.name for path in folder.iterdir()} - {MARK, REPORT, *RECIPES}  # dots too: all of it goes
        if others or not (folder / MARK).is_file():
            named = f" ({shown(min(others))[1:-1]})" if others else ""
            raise ValueError(f"demo: {folder} holds other files{named}; allowed: a new folder, an empty one, or an earlier demo")
        for name in RECIPES:
            with RunFolder(folder / name).locked():  # else another process trains there
                pass
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()
    return folder


def tell(name: str, folder: Path, *, toy: bool) -> Story:
    """Trains one model and measures it to well beyond its training depth."""
    chosen = recipe(RECIPES[name], toy=toy)
    began = time.perf_counter()
    trained = train(chosen, folder / name, reporter=Terminal(name), within=fitting_threads)
    if not trained.finished:
        raise KeyboardInterrupt
    median = build_kind(chosen.depth, RULES).median
    last = BEYOND * median
    depths = sorted({*range(1, 2 * median + 1), *(round(median * 2 ** (k / 2)) for k in range(11))})
    source = trained.splits.tests["test"]
    report = sweep(
        trained.model, source,
        depths=depths, batch_size=500, exact=True, eos_id=trained.splits.eos_id, pad_id=trained.splits.pad_id,
        decode_depths=[median, last], split=f"{name} model",
    )  # fmt: skip
    report.save(trained.folder.eval / "test.json")
    batch = source.batch(torch.arange(4) * (len(source) // 4)).to(trained.model.device)
    radius = {depth: measure(trained.model, batch, depth) for depth in (median, 2 * median, 4 * median, last)}
    return Story(chosen, trained, report, radius, time.perf_counter() - began, median)


def judge(stories: dict[str, Story]) -> Outcome:
    """Returns the verdict: does more depth hurt the plain model and not the stable one?

    Where one of them has not learned to add at its own depth nothing can be lost, so that nothing is shown.
    """
    plain, stable = stories["plain"], stories["stable"]
    far = BEYOND * stable.median
    own, lost = plain.report.accuracy()[plain.median], plain.report.accuracy()[BEYOND * plain.median]
    reached = [value for depth, value in stable.report.accuracy().items() if stable.median <= depth <= far]
    kept = stable.report.accuracy()[far]
    learned = min(own, stable.report.accuracy()[stable.median]) >= BAR
    holds = lost < LOST and min(reached) >= BAR if learned else None
    last = stable.radius[far]["radius_mean"]
    sentence = (
        f"The plain model adds {own:.1%} of {plain.report.rows:,} unseen problems right at its training depth {plain.median} and "
        f"{lost:.1%} at depth {BEYOND * plain.median}; the stable one {kept:.1%} at depth {far} and at least {min(reached):.1%} at "
        f"every depth measured from {stable.median} to there."
    )
    if holds is None:
        sentence += f" Before more depth can do harm, both must be right in {BAR:.0%} at their own depth."
    elif not holds:
        sentence += f" Wanted: below {LOST:.0%} for the plain one there, and at least {BAR:.0%} for the stable one everywhere."
    numbers = [
        (f"{lost:.1%}", f"plain model at {BEYOND} times its training depth"),
        (f"{kept:.1%}", f"stable model at {BEYOND} times its median training depth"),
        (f"{last:.2f}", f"stable model's spectral radius at depth {far} (below 1: the state settles)"),
    ]
    return Outcome(holds, sentence, numbers, f"{MARKS[holds]} {WORDS[holds]}")


def write(folder: Path, stories: dict[str, Story], seconds: float) -> Path:
    """Writes the report and returns where it is."""
    curves = {name: story.report.curve() for name, story in stories.items()}
    median = stories["stable"].median
    trained = build_kind(stories["stable"].recipe.depth, RULES).span
    sections = [
        Section(
            "Ask both, and change the depth",
            "The same unseen sums, answered digit by digit at the depth of the slider. The plain model was trained at depth "
            f"{stories['plain'].median} alone: move away from it.",
            sliders=[_answers(stories)],
        ),
        Section(
            "Accuracy against depth",
            "Each point is the share of unseen sums that are right in every digit when the core runs that many times. The plain "
            f"model was only ever trained at depth {stories['plain'].median}; the stable one where the figure is shaded.",
            [Picture(accuracy_by_depth(curves, trained=trained), "Exact match on held-out sums, with 95 % intervals.")],
        ),
        Section(
            "Does a step contract?",
            "The spectral radius ρ of one step at the state reached after so many steps. Above 1 small differences grow with each "
            "further step; below 1 they die out and the state settles.",
            [Picture(radius_by_depth({n: _radius(story) for n, story in stories.items()}), "Mean of four sums, with the range.")],
        ),
        Section(
            "Where the state goes",
            f"The state of one sum over {BEYOND * median} steps, in the two directions it moves most. A path that ends in a point "
            "has found its answer and stays; one that wanders on is still changing it.",
            [Picture(*_path(story, name)) for name, story in stories.items()],
        ),
        Section(
            "Learning",
            "The training loss of each update. The stable model is trained at a new depth each time and at every step of it, so "
            "its loss is noisier.",
            [Picture(loss_curves({n: s.trained.losses() for n, s in stories.items()}), "Cross-entropy of the answer's tokens.")],
        ),
        Section("What was run", "Both recipes ship with loopwright; change any setting with a.b=c.", tables=[_runs(stories)]),
    ]  # fmt: skip
    return write_report(
        folder / REPORT, "More depth: when it helps, when it hurts", sections,
        outcome=judge(stories),
        lead="Two small looped transformers learn to add two-digit numbers: one the plain way, one so that depth is safe.",
        footer=f"{seconds / 60:.1f} minutes on this machine. Problems in the test were never trained on.", made=how_made(),
    )  # fmt: skip


def _answers(stories: dict[str, Story]) -> Slider:
    """Returns what each model answers to the same sums at every depth that was measured."""
    plain = stories["plain"]
    sums = cast(Table, plain.trained.splits.tests["test"])
    rows = [i * (len(sums) // SUMS) for i in range(SUMS)]
    depths = sorted(set.intersection(*({*story.report.depth} for story in stories.values())))
    said = {name: {depth: _decoded(story, rows, depth) for depth in depths} for name, story in stories.items()}
    truth = [plain_sum(sums.show(row)) for row in rows]
    cells = [
        [(said[name][depth][i], said[name][depth][i] == truth[i].split(" = ")[1]) for i in range(SUMS) for name in stories]
        for depth in depths
    ]
    asked = [each.split(" = ")[0] + " =" for each in truth]
    start = depths.index(plain.median)
    return Slider(["sum", *(f"{name} model" for name in stories)], asked, depths, cells, start, "First shown: the training depth.")


@torch.no_grad()
def _decoded(story: Story, rows: list[int], depth: int) -> list[str]:
    """The sums that greedy decoding gives at a depth, as people write them."""
    model, table = story.trained.model, cast(Table, story.trained.splits.tests["test"])
    decoded = []
    for row in rows:
        start, length = int(table.starts[row]), int(table.lengths[row])
        prompt = table.ids[row, :start].long()[None].to(model.device)
        made = model.generate(
            prompt, depth=depth, max_new_tokens=length - start, do_sample=False, pad_token_id=table.alphabet.pad_id
        )
        text = table.alphabet.decode(made[0, start:]).split(EOS)[0]
        decoded.append(text.strip()[::-1] or "nothing")
    return decoded


def _radius(story: Story) -> Curve:
    radius = story.radius
    return Curve(
        list(radius), [r["radius_mean"] for r in radius.values()],
        [r["radius_least"] for r in radius.values()], [r["radius_largest"] for r in radius.values()],
    )  # fmt: skip


@torch.no_grad()
def _path(story: Story, name: str) -> tuple[str, str]:
    model, source = story.trained.model, story.trained.splits.tests["test"]
    batch = source.batch([0]).to(model.device)
    e, p = model.embed(batch.input_ids, attention_mask=batch.attention_mask)
    start = model.start_state(e, p)
    states = torch.stack([start, *model.unroll(e, BEYOND * story.median, p, state=start)])
    real = batch.valid[0]
    path = pca_path(states[:, 0, real])
    svg = state_paths([path.coordinates.tolist()], explained=path.explained.tolist(), title=f"{name} model")
    return svg, f"The {name} model on {plain_sum(cast(Table, source).show(0))}."


def plain_sum(row: str) -> str:
    """Returns a row of the task as people write it: "79+87= 661§", whose sum stands from its last digit, as "79 + 87 = 166"."""
    problem, _, answer = row.partition("=")
    return f"{problem.strip().replace('+', ' + ')} = {answer.strip().rstrip(EOS + PAD)[::-1]}"


def _short(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.1e}"


def _runs(stories: dict[str, Story]) -> Grid:
    head = ["", *stories]
    lines: dict[str, Callable[[Story], str]] = {
        "recipe": lambda s: RECIPES[s.trained.folder.path.name],
        "parameters": lambda s: f"{sum(p.numel() for p in s.trained.model.parameters()):,}",
        "depth in training": lambda s: ", ".join(f"{v}" if k == "kind" else f"{k} {v}" for k, v in s.recipe.depth.items()),
        "loss": lambda s: s.recipe.objective["kind"],
        "penalty": lambda s: ", ".join(p["kind"] for p in s.recipe.penalties) or "none",
        "updates × rows": lambda s: f"{s.recipe.updates:,} × {s.recipe.batch}",
        "penalty from update": lambda s: "–" if not s.recipe.penalties else f"{s.trained.progress.solved_at or 'never'}",
        "seconds": lambda s: f"{s.seconds:.0f}",
        "largest state change": lambda s: f"{_short(s.report.change_largest[-1])} at depth {s.report.depth[-1]}",
    }
    return Grid(head, [[name, *(line(story) for story in stories.values())] for name, line in lines.items()])
