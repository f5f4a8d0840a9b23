"""What docs/inside-training.md says of orbits: trained again, other norms, system prompts, first tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from experiments.inside import orbits
from experiments.inside.norms import loss
from experiments.inside.train_claims import CLAIMS, readings
from experiments.inside.train_plan import CONTROL, SLOW, STEPS
from experiments.inside.train_tables import alike, in_words, read
from experiments.pages import percent
from experiments.readme.inside.trained import found, seeds_of
from experiments.readme.rows import RESULTS, WORDS, line, only, rows_of, when
from loopwright.analysis.report.findings import DRIFT
from loopwright.analysis.report.findings import percent as cut
from loopwright.metrics.limits import FIXED_POINT, ORBIT

Row = Mapping[str, Any]
DEEPEST = 32
HUGINN, FIRST = "huginn-4-injected", "sandwich-4-injected"
OURO, SLOWER = "ouro-8", "ouro-8-slow"
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
def like(label: str, seed: int = 0) -> Row:
    """Returns one seed of a model with the norms of Ouro or of Huginn."""
    return only("inside/like.jsonl", label=label, seed=seed)


@cache
def huginn() -> list[Row]:
    """Returns the seeds of the looped model with Huginn's norms."""
    return [like(HUGINN, seed) for seed in range(3)]


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
    looped = (*(run for run in found() if run["label"] != CONTROL), *huginn(), like(OURO), like(SLOWER))
    (steps,) = {run["deep"]["places"]["steps"] for run in looped}
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
    words = f"Of eight claims about small trained models {WORDS[none]} fails and {WORDS[some]} hold for some models"
    yield when(len(CLAIMS) == none + some and not every, words)
    count, models = with_orbits()
    yield f"still orbit after {deepest()} steps in {WORDS[count]} of {WORDS[models]} models"


def learned(run: Row) -> bool:
    """Returns whether a model came nine tenths of the way from its first loss to that of the worst of the looped models."""
    worst = max(loss(each, STEPS) for each in found() if each["label"] != CONTROL)
    return bool(loss(run, STEPS) - worst < 0.1 * (run["losses"][0] - worst))


def unlearned() -> bool:
    """Returns whether Ouro's norms did not learn at either rate."""
    return not any(map(learned, (like(OURO), like(SLOWER))))


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
    """Yields what becomes of tokens with the norms of Huginn and of Ouro."""
    held = [run["deep"]["limits"]["tokens"] for run in huginn()]
    some = min(map(in_orbit, huginn())) > 0
    yield when(some, "and so have all three seeds with Huginn's norms.")
    yield when(some, "Huginn's norms: orbits with all three seeds.")
    rest, swing = (listed([100 * each[what] for each in held], digits) for what, digits in ((FIXED_POINT, 1), (ORBIT, 2)))
    yield f"Of held-out tokens {rest} % rest (seeds 0, 1 and 2), and {swing} % are in an orbit."
    more = [loss(run, DEEPEST) - loss(run, STEPS) for run in huginn()]
    yield f"Depth {DEEPEST} costs {min(more):.3f} to {max(more):.3f}."
    bare = prompts(HUGINN)["none"]
    yield (
        f"of bare questions' tokens {percent(1 - bare['moving_tokens'])} rest, and {percent(bare['moving_examples'])} of the bare "
        "questions have a token that does not"
    )
    ouro, slower = like(OURO), like(SLOWER)
    yield when(unlearned(), "Ouro's norms tell nothing: at neither of two rates did the model learn")
    yield when(unlearned(), "The model learned at neither of two rates (one seed each).")
    levels = {f"{loss(ouro, depth):.2f}" for depth in (2, 4, 8, 16, DEEPEST)}
    yield when(len(levels) == 1, f"At 1e-3 its loss is {min(levels)} at every depth from 2 on")
    early, late = ouro["losses"][2], ouro["losses"][-1]
    yield f"the mean training loss is {early:.2f} over updates 41 to 60 and {late:.2f} over the last 20 of {ouro['updates']}"
    radius = {f"{each:.2f}" for each in page_of(OURO)["spectrum"]["radius"]}
    yield when(len(radius) == 1, f"The largest eigenvalue of a step is {min(radius)}")
    levels = {f"{loss(slower, depth):.2f}" for depth in (8, 16, DEEPEST)}
    yield when(
        len(levels) == 1,
        f"At {10**4 * SLOW:g}e-4 it is {loss(slower, STEPS):.2f} at depth {STEPS}, {loss(slower, 2):.2f} at depth 2 and "
        f"{min(levels)} from depth 8 on, and the mean training loss is {slower['losses'][-1]:.2f} over the last 20 updates",
    )
    still = all(run["deep"]["limits"]["tokens"][FIXED_POINT] == 1 for run in (ouro, slower))
    one_point = all(layer[2] == 1 for run in (ouro, slower) for layer in run["deep"]["convergence"]["layers"])
    yield when(still and one_point, "At both rates every token rests and all layers rest at one point.")


def listed(values: Sequence[float], digits: int) -> str:
    """Returns three numbers: "1.0, 2.0 and 3.0"."""
    first, second, third = (f"{value:.{digits}f}" for value in values)
    return f"{first}, {second} and {third}"


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
    models = (*SMALL, LARGE, HUGINN, SLOWER)
    for prompt, said in PROMPTS.items():
        there = [prompts(model)[prompt] for model in models]
        yield line(said, *(percent(row["moving_tokens"], 2).replace("0.00 %", "0") for row in there))
    half = [row["moving_tokens"] for row in prompts(OURO).values()]
    yield when(half == [0, 0], "Ouro's norms at 1e-3 have the first two rows alone, 0 in both.")
    pairs = [[moving(prompts(model)[prompt]) for prompt in ("long persona", "long persona, padded")] for model in SMALL]
    told = [f"{a} tokens against {b}" if place == 0 else f"{a} against {b}" for place, (a, b) in enumerate(pairs)]
    more = all(a > b for a, b in pairs)
    yield when(
        more,
        f"So it does in the three models with pre-norm here that have cores of 4 and 8 layers: {told[0]}, {told[1]} and {told[2]}.",
    )
    persona, padded = (moving(prompts(LARGE)[prompt]) for prompt in ("long persona", "long persona, padded"))
    yield when(persona < padded, f"In the core of 12 layers it does not: {persona:,} against {padded:,}.")
    older = [moving(prompts(FIRST)[f"{prompt}, our own"]) for prompt in ("long persona", "long persona, padded")]
    yield f"In the first training, with prompts of our own, it was {older[0]} against {older[1]}."
    rests, pads = prompts(HUGINN)["long persona"], prompts(HUGINN)["long persona, padded"]
    yield when(
        rests["moving_tokens"] == 0,
        f"Behind the persona every token rests; behind as many pad tokens {percent(pads['moving_tokens'], 2)} do not, in "
        f"{100 * pads['moving_examples']:.0f} % of the questions.",
    )
    by_prompt = [[prompts(model)[prompt]["moving_tokens"] for prompt in PROMPTS] for model in SMALL]
    fewer = all(max(behind) < bare for *behind, bare in by_prompt)
    yield when(
        fewer,
        "In the three models with pre-norm and cores of 4 and 8 layers fewer tokens move behind every prompt than in bare "
        "questions.",
    )
    yield when(
        all(max(long, pad) < short for long, pad, short, _ in by_prompt[1:]),
        "In the two with cores of 8 layers fewer move behind the persona and the padding than behind the short line about "
        "mathematics.",
    )
    *behind, bare = (prompts(LARGE)[prompt]["moving_tokens"] for prompt in PROMPTS)
    every = all(row["moving_examples"] == 1 for row in prompts(LARGE).values())
    yield when(
        every,
        f"{100 * min(behind):.2f} to {percent(max(behind), 2)} of tokens do not rest behind the three prompts, "
        f"{percent(bare, 2)} of those of bare questions, and every question has such a token.",
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
    whole = [model for model in (*SMALL, LARGE, HUGINN, SLOWER) if all(prompt in prompts(model) for prompt in PROMPTS)]
    yield f"{WORDS[len(whole)].capitalize()} more models, one of them with Huginn's norms, one with Ouro's that did not learn."
    yield when(unlearned(), "With Ouro's norms a model learned at neither of two rates.")
    pages = [row for row in rows_of("inside/orbits.jsonl") if "orbits" in row]
    swings = [100 * orbits.share(row, "colsum") for row in pages]
    swing = f"ColSum swings by {min(swings):.1f} to {max(swings):.1f} % of its range"
    yield f"{WORDS[len(pages)]} more models, {pages[0]['examples']} questions each; {swing}"
    yield when(len(seeds_of(CONTROL)) == 3, "three seeds, as their control, figures of seed 0")


def claims() -> Iterator[str]:
    """Yields what the rows say on the page."""
    for part in (again_claims, norm_claims, page_claims, prompt_claims, first_claims):
        yield from part()
