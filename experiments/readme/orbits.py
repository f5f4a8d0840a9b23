"""What docs/inside-training.md says of orbits: trained again, other norms, system prompts, first tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from experiments.inside import orbits
from experiments.inside.train_claims import CLAIMS, readings
from experiments.inside.train_plan import CONTROL, STEPS
from experiments.inside.train_tables import alike, in_words, read
from experiments.pages import percent
from experiments.readme.rows import RESULTS, WORDS, line, only, rows_of, when
from experiments.readme.trained import found, loss, seeds_of
from loopwright.analysis.report.findings import DRIFT
from loopwright.analysis.report.findings import percent as cut
from loopwright.metrics.limits import FIXED_POINT, ORBIT

Row = Mapping[str, Any]
DEEPEST = 32
HUGINN, OURO, FIRST = "huginn-4-injected", "ouro-8", "sandwich-4-injected"
SMALL = ("sandwich-4-injected-2", "sandwich-8-injected-1", "sandwich-8-injected-2")  # pre-norm, trained again, cores of 4 and 8
LARGE = "sandwich-12-injected-2"
PROMPTS = {
    "long persona": "long persona", "long persona, padded": "as many pad tokens", "short maths": "short maths", "none": "nothing",
}  # fmt: skip
LETTER, WORD, NEWLINE = "“E” for the first token", "“The” for the first token", "behind a newline"
WAYS = {
    LETTER: "all with “E” in the place of their first token", WORD: "all with “The” in the place of their first token",
    NEWLINE: "all behind a newline",
}  # fmt: skip


@cache
def like(label: str) -> Row:
    """Returns the model with the norms of Ouro or of Huginn."""
    return only("inside/like.jsonl", label=label)


@cache
def page_of(name: str) -> Row:
    """Returns what is kept of a model's page."""
    return only("inside/orbits.jsonl", name=name)


@cache
def prompts(model: str) -> dict[str, Row]:
    """Returns a model's rows of system prompts, by prompt."""
    return {row["system_prompt"]: row for row in rows_of("inside/system.jsonl") if row["model"] == model}


@cache
def first_token(model: str, way: str = "as they are") -> Row:
    """Returns a model's row of one way to begin a question."""
    return only("inside/first-token.jsonl", model=model, way=way)


def shares(values: Sequence[float], digits: int = 1) -> list[str]:
    """Returns shares in percent."""
    return [percent(value, digits) for value in values]


def with_orbits() -> tuple[int, int]:
    """Returns how many models with injection between prelude and coda have orbits on held-out text, and of how many."""
    runs = [run for run in found() if run["label"].startswith("sandwich") and run["injected"]]
    return sum(in_orbit(run) > 0 for run in runs), len(runs)


def deepest() -> int:
    """Returns after how many steps it is told whether a token rests."""
    (steps,) = {run["deep"]["places"]["steps"] for run in (*found(), like(HUGINN), like(OURO)) if run["label"] != CONTROL}
    return int(steps)


def in_orbit(run: Row) -> float:
    """Returns the share of held-out tokens that a run leaves in an orbit."""
    return float(run["deep"]["limits"]["tokens"][ORBIT])


def verdicts() -> tuple[int, int, int]:
    """Returns how many claims hold in no model, in some and in all."""
    said = [in_words(list(claim.cases(readings(found())))).split(":")[0] for claim in CLAIMS]
    return said.count("no"), said.count("in part"), said.count("yes")


def headline() -> Iterator[str]:
    """Yields what the README says of trained models."""
    none, some, every = verdicts()
    words = f"Of eight claims about small trained models {WORDS[none]} fails, against a control that has hardly any stages, and"
    yield when(len(CLAIMS) == none + some and not every, f"{words} {WORDS[some]} hold for some models")
    count, models = with_orbits()
    yield when(
        in_orbit(like(HUGINN)) > 0,
        f"still orbit after {deepest()} steps in {WORDS[count]} of {WORDS[models]} models, and in one with Huginn's norms",
    )
    yield when(not learned(like(OURO)), "one with Ouro's norms did not learn (one seed each)")


def learned(run: Row) -> bool:
    """Returns whether a model came nine tenths of the way from its first loss to that of the worst of the looped models."""
    worst = max(loss(each, STEPS) for each in found() if each["label"] != CONTROL)
    return bool(loss(run, STEPS) - worst < 0.1 * (run["losses"][0] - worst))


def again_claims() -> Iterator[str]:
    """Yields the table of models that were trained twice, and how many came out the same."""
    same = []
    first = {run["name"]: run for run in found()}
    again = read([str(RESULTS / "inside/again.jsonl")])
    for run in again:
        pair = (first[run["name"]], run)
        same.append(alike(*pair))
        losses = (" / ".join(f"{loss(one, depth):.3f}" for one in pair) for depth in (STEPS, DEEPEST))
        limits = (" / ".join(cut(one["deep"]["limits"]["tokens"][what]) for one in pair) for what in (FIXED_POINT, ORBIT))
        name = orbits.written(run["label"])
        yield line(f"{name}, seed {run['seed']}", *losses, *limits, "yes" if same[-1] else "no")
    had = [(run["name"], in_orbit(run) > 0, agree) for run, agree in zip(again, same, strict=True) if in_orbit(first[run["name"]])]
    kept, equal = sum(keeps for _, keeps, _ in had), sum(agree for *_, agree in had)
    yield f"Of {WORDS[len(had)]} models with orbits that were trained again {WORDS[kept]} have orbits again."
    yield f"{WORDS[equal].capitalize()} of these {WORDS[kept]} are the same in every digit."
    other = [keeps for _, keeps, agree in had if not agree]
    yield when(
        sorted(other) == [False, True],
        "The other two were first trained by an earlier version of the code and differ: one keeps its orbits, one loses them",
    )
    lost = [name for name, keeps, _ in had if not keeps]
    yield when(lost == ["sandwich-4-injected/0"], "(2, 4⊗4, 2) I of seed 0 has no orbit any more.")
    yield when(
        lost == ["sandwich-4-injected/0"], "(2, 4⊗4, 2) I, seed 0, has orbits after the first training and none after the second"
    )
    held = again[0]["held_out"]
    passages, depths = len(held["losses"][held["depth"].index(STEPS)]), len(held["depth"])
    yield f"losses of all {passages} passages at depth {STEPS}, mean losses at {WORDS[depths]} depths and counts of orbits"
    later = {run["seed"] for run, agree in zip(again, same, strict=True) if agree}
    yield when(later == {2}, f"The {WORDS[sum(same)]} of seed 2 ran twice as a CUDA graph")
    start = [run["losses"][0] for run in (first["sandwich-4-injected/0"], only("inside/again.jsonl", name="sandwich-4-injected/0"))]
    yield f"the mean loss of the first 20 updates of (2, 4⊗4, 2) I is {start[0]:.4f} and {start[1]:.4f}"
    count, models = with_orbits()
    many = f"{WORDS[count].capitalize()} of {WORDS[models]}"
    yield f"{many} models with injection between prelude and coda have some on held-out text after {deepest()} steps"
    pages = all(page_of(name)["tokens"][ORBIT] > 0 for name in (*SMALL, LARGE))
    yield f"{WORDS[len(had)].capitalize()} of the {WORDS[count]} models with orbits on held-out text were trained again"
    yield when(pages and kept == 4, "The other four have orbits on questions too")
    none, some, _ = verdicts()
    yield f"Of eight claims {WORDS[none]} fails and {WORDS[some]} hold for some models"


def norm_claims() -> Iterator[str]:
    """Yields what the models with the norms of Huginn and of Ouro came to."""
    huginn, ouro = like(HUGINN), like(OURO)
    own = loss(huginn, STEPS)
    behind = [loss(run, STEPS) - own for run in seeds_of(FIRST)]
    control = [loss(run, 1) - own for run in seeds_of(CONTROL)]
    lowest = min(loss(run, STEPS if run["label"] != CONTROL else 1) for run in found())
    yield when(own < lowest, "Huginn's norms: orbits too, and the lowest loss of all, at one seed and one rate.")
    yield (
        f"The loss is {own:.3f} at depth 4: {min(behind):.2f} to {max(behind):.2f} less than that of (2, 4⊗4, 2) I, and "
        f"{min(control):.2f} to {max(control):.2f} less than the control's (one seed against three"
    )
    runs = [sum(each[part] for part in ("prelude_layers", "coda_layers")) + each["core_layers"] * each["depth"]
            for each in (seeds_of(CONTROL)[0]["layers"], huginn["layers"])]  # fmt: skip
    yield f"the control runs {runs[0]} layers where this model runs {runs[1]}"
    yield f"Depth 32 costs {loss(huginn, DEEPEST) - own:.3f}."
    bare, held = prompts(HUGINN)["none"], huginn["deep"]["limits"]["tokens"]
    yield (
        f"Of held-out tokens {percent(held[FIXED_POINT])} rest, of bare questions' {percent(1 - bare['moving_tokens'])}; "
        f"{percent(bare['moving_examples'])} of the bare questions have a token that does not"
    )
    levels = {f"{loss(ouro, depth):.2f}" for depth in (2, 4, 8, 16, DEEPEST)}
    yield when(not learned(ouro) and len(levels) == 1, f"Its loss is {min(levels)} at every depth from 2 on")
    early, late = ouro["losses"][2], ouro["losses"][-1]
    yield f"the mean training loss is {early:.2f} over updates 41 to 60 and {late:.2f} over the last 20 of {ouro['updates']}"
    degenerate = all(layer[2] == 1 for layer in ouro["deep"]["convergence"]["layers"])
    radius = {f"{each:.2f}" for each in page_of(OURO)["spectrum"]["radius"]}
    yield when(
        degenerate and len(radius) == 1, f"All layers rest at one point, and the largest eigenvalue of a step is {min(radius)}"
    )


def page_claims() -> Iterator[str]:
    """Yields the table of pages, and how far stages swing."""
    names = (*SMALL, LARGE, HUGINN)
    for name in names:
        row, (model, seed) = page_of(name), orbits.named(name)
        cells = [percent(row["in_examples"][ORBIT]), percent(row["tokens"][ORBIT]), f"{row['orbits']['median_frequency']:.3f}"]
        cells += [" / ".join(f"{radius:.2f}" for radius in row["spectrum"]["radius"])]
        said = model if name == HUGINN else f"{model}, seed {seed}"
        yield line(said, *cells, *(percent(orbits.share(row, stage)) for stage in orbits.STAGES))
    row = page_of(HUGINN)
    yield f"{row['examples']} GSM8K questions, {row['all_tokens']:,} tokens"
    swings = sum(orbits.share(page_of(name), "colsum") > DRIFT for name in names)
    yield f"It swings by more than {100 * DRIFT:.0f} % of its range in {WORDS[swings]} of {WORDS[len(names)]} models"
    alone = [name for name in names if page_of(name)["orbits"]["tokens"] == 1]
    yield when(alone == ["sandwich-4-injected-2"], "(2, 4⊗4, 2) I, seed 2, has one token in an orbit on these questions")
    yield f"Entropy swings by {percent(max(orbits.share(page_of(name), 'entropy') for name in names))} or less"
    radius, turns = (row["spectrum"][key][-1] for key in ("radius", "frequency"))
    just = when(1 < radius < 1.05, "the eigenvalue after 128 steps is just above 1")
    yield f"{just}, and it turns by {turns:.3f} a step, near the {row['orbits']['median_frequency']:.3f} of the orbits"


def prompt_claims() -> Iterator[str]:
    """Yields the table of system prompts of six models, and what a persona does beside padding."""
    models = (*SMALL, LARGE, HUGINN, OURO)
    missing = 0
    for prompt, said in PROMPTS.items():
        there = [prompts(model).get(prompt) for model in models]
        missing += there.count(None)
        yield line(said, *("–" if row is None else percent(row["moving_tokens"], 2).replace("0.00 %", "0") for row in there))
    yield f"not measured, {WORDS[missing]} cells; the run's time ended"
    yield f"{WORDS[missing].capitalize()} cells of the system prompts of six models"
    pairs = [[moving(prompts(model)[prompt]) for prompt in ("long persona", "long persona, padded")] for model in SMALL]
    told = [f"{a} tokens against {b}" if place == 0 else f"{a} against {b}" for place, (a, b) in enumerate(pairs)]
    more = all(a > b for a, b in pairs)
    yield when(more, f"So it does in all three models with pre-norm here that have both rows: {told[0]}, {told[1]} and {told[2]}.")
    older = [moving(prompts(FIRST)[f"{prompt}, our own"]) for prompt in ("long persona", "long persona, padded")]
    yield f"In the first training, with prompts of our own, it was {older[0]} against {older[1]}."
    rests, pads = prompts(HUGINN)["long persona"], prompts(HUGINN)["long persona, padded"]
    yield when(
        rests["moving_tokens"] == 0,
        f"Behind the persona every token rests; behind as many pad tokens {percent(pads['moving_tokens'], 2)} do not, in "
        f"{100 * pads['moving_examples']:.0f} % of the questions.",
    )
    behind, bare = prompts(LARGE)["long persona"], first_token(LARGE)
    yield (
        f"{percent(behind['moving_tokens'], 2)} of tokens do not rest behind the persona, {percent(bare['moving'])} of the tokens "
        f"of {bare['questions']} bare questions"
    )


def moving(row: Row) -> int:
    """Returns how many tokens are at no fixed point."""
    return round(row["moving_tokens"] * row["all_tokens"])


def first_claims() -> Iterator[str]:
    """Yields the two tables of first tokens, and what is said of them."""
    models = (FIRST, *SMALL, LARGE, HUGINN)
    plain = [first_token(model) for model in models]
    yield line("as they are", *shares([row["moving"] for row in plain]))
    letters, others = plain[0]["letter_first"][0], plain[0]["other_first"][0]
    yield line(f"of these, {letters} that begin with a single capital letter", *shares([row["letter_first"][1] for row in plain]))
    yield line(
        f"of these, {others} that begin with a longer token (“The”, “In”, “If” …)",
        *shares([row["other_first"][1] for row in plain]),
    )
    yield line("as they are", *shares([row["first"] for row in plain]))
    for way, said in WAYS.items():
        for number in ("moving", "first"):
            yield line(said, *shares([first_token(model, way)[number] for model in models]))
    small = (FIRST, *SMALL)
    letter = all(row["letter_first"][1] > row["other_first"][1] for row in map(first_token, small))
    more = all(first_token(model, LETTER)["moving"] > first_token(model, WORD)["moving"] for model in small)
    never = all([first_token(model, way)["first"] for way in WAYS] == [1, 0, 0] for model in small)
    yield when(
        letter and more,
        "A lone capital letter (this tokenizer splits most names so) leaves more tokens in motion than a longer token, “E” more "
        "than “The”.",
    )
    steps = first_token(FIRST)["depth"]
    yield when(never, f"In all four “E” itself does not rest within {steps} steps, “The” does, and behind a newline no first token")
    left_over = {
        model: [first_token(model, way)["moving"] / first_token(model)["moving"] for way in (NEWLINE, WORD)]
        for model in (*small, LARGE)
    }
    fewer, same = max(max(left_over[model]) for model in small) < 0.5, all(0.9 < each < 1.1 for each in left_over[LARGE])
    yield when(
        fewer and same,
        "Behind a newline, or with “The” as the first token, fewer than half as many tokens move in the four pre-norm models with "
        "such cores; in the one with 12 layers about as many",
    )
    left = first_token(SMALL[1], NEWLINE)
    far = left["by_position"][-1]
    yield f"{percent(left['moving'])} of tokens move behind a newline, and {percent(far[2])} of those from the {far[0] + 1}th on"
    large = [first_token(LARGE, way) for way in ("as they are", *WAYS)]
    least, most = (percent(pick(row["moving"] for row in large)) for pick in (min, max))
    still = all(row["first"] == 0 for row in large)
    yield when(still, f"No first token moves in any way of beginning, and {least.removesuffix(' %')} to {most} of the others do.")
    own, newline, one = (first_token(HUGINN, way)["first"] for way in ("as they are", NEWLINE, LETTER))
    yield when(
        one == 0,
        f"{percent(own)} of first tokens move as the questions are, {percent(newline)} behind a newline, and none with “E”",
    )
    near = [each[2] for each in plain[0]["by_position"]]
    yield (
        f"In the first training {100 * near[0]:.0f} % of the second to fourth tokens swing, {100 * near[1]:.0f} % up to the "
        f"sixteenth, {100 * near[2]:.0f} % up to the sixty-fourth and {100 * near[3]:.1f} % of the rest"
    )
    near = [100 * each[2] for each in first_token(SMALL[2])["by_position"]]
    yield f"in (2, 8⊗4, 2) I, seed 2, it is {near[0]:.0f}, {near[1]:.0f}, {near[2]:.1f} and {near[3]:.1f} %"
    yield f"In {100 * plain[0]['first']:.0f} % of the questions it does."
    yield f"({plain[0]['turns']:.3f} turns a step, the highest frequency that 127 steps show)"


def coverage_claims() -> Iterator[str]:
    """Yields what the page of all tables and figures says of this study's models."""
    lacking = sum(prompt not in prompts(model) for model in (*SMALL, LARGE, HUGINN, OURO) for prompt in PROMPTS)
    yield f"Six more models, one of them with Huginn's norms, with {WORDS[lacking]} cells missing."
    yield when(not learned(like(OURO)), "The one with Ouro's norms did not learn.")
    pages = [row for row in rows_of("inside/orbits.jsonl") if "orbits" in row]
    swings = [100 * orbits.share(row, "colsum") for row in pages]
    swing = f"ColSum swings by {min(swings):.1f} to {max(swings):.1f} % of its range"
    yield f"{WORDS[len(pages)]} more models, {pages[0]['examples']} questions each; {swing}"
    yield when(len(seeds_of(CONTROL)) == 3, "three seeds, as their control, figures of seed 0")


def claims() -> Iterator[str]:
    """Yields what the rows say on the page."""
    for part in (again_claims, norm_claims, page_claims, prompt_claims, first_claims):
        yield from part()
