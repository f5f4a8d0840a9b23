"""What the README's table of headline results says: the studies' own numbers, in short."""

from __future__ import annotations

from collections.abc import Iterator

from experiments import overview
from experiments.pages import words
from experiments.readme import speed, text
from experiments.readme.retrofit import cores, corrected, language, own_rates, rates_again, rates_twice
from experiments.readme.rows import WORDS, of, when
from experiments.readme.tasks import learned, stars
from experiments.stars.tables import accuracy
from experiments.templates import asura, hops, inside, lengths, loops

SETTINGS = (
    "where its 95 % interval over seeds (three, unless another number is given) excludes 0",
    "Four digits at depth 1,000",
    "at fixed depth 4.",
    "A looped SmolLM2, fine-tuned",
    "it adds numbers of 64",
    "SmolLM2-135M was cut to half its layers",
    "On chats at a fixed depth of 4",
    "In SmolLM2-135M the later stages vanish",
    "Ouro-1.4B's shape at depth 4 and batch 1 (random weights)",
    "of an H200",
)


def verdicts() -> Iterator[str]:
    """Yields the answers in bold, as far as the rows bear them out."""
    yield when(loops.pays_on_hops(), "**On a synthetic task, where parameters are scarce and many steps in a row are needed.")
    yield when(not loops.loop_alone(), "On text it is not shown that the loop pays at equal FLOPs")
    shown = {each.verdict for each in asura.both(asura.WHOLE, asura.FLOPS)} == {"lower"}
    yield when(not shown, "**At nearly equal FLOPs this is not shown**")
    none = "**On held-out text no gain was found at equal training FLOPs, where no text is read twice.**"
    yield when(loops.every_retrofit_behind(), none)
    right = all(accuracy(run)[1000] == 1 for run in stars.runs_of()["target"]["addition-stable"])
    yield when(right, "**On addition, not with our recipe.")
    yield when(stars.released()[1] == "not decided", "**For accuracy that is not shown, and the penalty as printed was not run.**")
    yield when(min(lengths.random()) > 95, "**Yes, with an attention window that fits the task**: trained on 4 to 8 digits")


def of_the_inside() -> Iterator[str]:
    """Yields what becomes of the claims about random and about small trained models."""
    none, some, every = inside.verdicts()
    claims, other = inside.holding(), inside.holding("huginn")
    so = set(claims) == {"holds"} and set(other) == {"does not hold"} and not every
    yield when(so, f"**In part.** At random initialisation all {WORDS[len(claims)]} claims hold from PyTorch's default start")
    yield f"from another start all {WORDS[len(other)]} fail (one seed)"
    yield f"Of eight claims about small trained models {WORDS[none]} fails and {WORDS[some]} hold for some models"
    models = inside.kind("sandwich", True)
    steps = models[0].run["deep"]["places"]["steps"]
    yield f"still orbit after {steps} steps in {WORDS[len(inside.orbiting())]} of {WORDS[len(models)]} models"


def claims() -> Iterator[str]:
    """Yields what the rows say."""
    yield from verdicts()
    yield from of_the_inside()
    seeds = WORDS[len(stars.runs_of()["target"]["addition-stable"])]
    yield f"{stars.exact_at('ours', 1000)} % right with `addition-stable` ({seeds} seeds)"
    released = stars.exact_at("paper: random depth + penalty", 1000)
    yield f"{released} % as released (random depth and a penalty on the Jacobian of a step)"
    yield f", {stars.exact_at('paper: fixed depth 4', 1000)} % when trained"
    ahead, verdict, p = stars.released()
    yield f"{'better' if min(ahead) > 0 else 'not better'} on each seed, {verdict} (p = {p:.2f} at depth 1,000)"
    yield f"At our settings {stars.without_penalty()} seeds are 100 % right without it as well"
    yield f"comes to rest (at every depth measured from {stars.rests_from()[0]} on)"
    yield learned.price()
    yield from language.headline_claims()
    least, seeds = min(lengths.beyond()), of(len(lengths.runs()), len(lengths.runs()))
    yield f"at depths {words(lengths.BEYOND)} (at least {least:.1f} % of {lengths.rows():,} rows with long carries, {seeds} seeds;"
    yield f"random digits: {min(lengths.random()):.1f} % with the worst seed"
    yield from own_rates.headline_claims()
    yield from rates_again.headline_claims()
    yield from rates_twice.headline_claims()
    yield from corrected.headline()
    yield cores.headline()
    yield f"At nearly equal parameters yes (at equal updates and one rate, {text.at_equal_parameters()})"
    yield text.equal_flops()
    yield text.parts()
    part = f"with 1/{hops.times_smaller()} of the parameters and equal FLOPs"
    yield f"one layer run eight times solves what eight layers solve, {part}"
    yield when(hops.none_far(), "no model answers 24 hops")
    some = any(each.verdict == "lower" for each in overview.equal_parameters())
    yield when(some, f"at equal parameters some loops are ahead, for {overview.dearer()}")
    yield from text.claims()
    yield f"reaches {speed.share_of_bound(1):.2f} of the bandwidth bound"
    yield f"and {speed.share_of_bound(32):.2f} at batch 32"
    yield f"requests at depths 1 to 8 with {speed.mixed_depths(128):.2f} times the tokens/s of lockstep batches at depth 8"
    yield "(answers of 128 tokens)"
