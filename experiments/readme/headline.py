"""What the README's table of headline results says: the studies' own numbers, in short."""

from __future__ import annotations

from collections.abc import Iterator

from experiments import overview
from experiments.pages import words
from experiments.readme import speed, text
from experiments.readme.inside import orbits, untrained
from experiments.readme.retrofit import language
from experiments.readme.rows import WORDS, of, when
from experiments.readme.tasks import learned, stars
from experiments.stars.tables import accuracy
from experiments.templates import asura, chance, cores, hops, lengths, loops, ouroboros
from experiments.templates.ouroboros import BLIND, CONTROLLER, DIAGONAL, READERS, STATIC, TOKEN, less
from experiments.templates.words import from_to, size, stands

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


def reading() -> Iterator[str]:
    """Yields how controllers that read the input stand in the retrofit study."""
    yield when(not ouroboros.ahead_of_rivals(), "No gain over simpler rivals was found at best depths")
    mean, told = less(CONTROLLER, DIAGONAL), "a static diagonal, the paper's rival under our gate (a fixed scaling per step"
    yield f"A controller that reads the running mean of the states is {from_to(mean, 2)} nats {stands(mean)} {told}; {mean.word})"
    open_ = {less(TOKEN, DIAGONAL, of=runs).word for runs in (ouroboros.own, ouroboros.second)} == {"undecided"}
    yield when(open_, "One that reads each token shows no decided difference from it in either of two sets of runs")
    behind = [None in chance.stands(run, "behind") for run in chance.PAIR]
    yield when(behind == [True, False], "and comes close to being behind in the second")
    yield f"at depths {words(ouroboros.decided_in_both(TOKEN, DIAGONAL))} it is ahead (decided in both)"
    neither = {less(arm, BLIND).word for arm in READERS} == {"undecided"}
    told = "Whether either is ahead of the same controller when it knows only the step (*blind*) is not decided at best depths"
    yield when(neither, told)
    tables = [less(arm, STATIC) for arm in READERS]
    told = f"beat both controllers that read by {from_to(ouroboros.every(tables), 2)} (decided)"
    yield when({each.side for each in tables} == {"behind"}, told)
    left = [pair for pair in ouroboros.stay() if pair in ((CONTROLLER, DIAGONAL), (CONTROLLER, STATIC), (TOKEN, STATIC))]
    told = f"After a Bonferroni correction for {WORDS[len(ouroboros.twelve())]} pairs at best depths"
    stays = "only the tables' lead over the running mean stays decided among those named here"
    yield when(left == [(CONTROLLER, STATIC)], f"{told}, {stays}")
    slow = [each.ahead_on for each in ouroboros.at_depths(CONTROLLER, DIAGONAL, ouroboros.one_rate).values()]
    told = f"the controller with the running mean beat the static diagonal, at every depth on {of(min(slow), 3)} seeds"
    yield f"{told}; but that rate held the diagonal back by {size(ouroboros.cost(DIAGONAL), 2)} nats"


def looping() -> Iterator[str]:
    """Yields how retrofits with adapters stand beside the same layers run once."""
    six, lead = WORDS[len(cores.LOOPED)], cores.lead()
    corrected = when(cores.on_first_alone(), f"after a Bonferroni correction for {six} rows on one of two texts only")
    told = f"of {six} loops with adapters one is ahead of the same layers run once, by {size(lead[0])} ({lead.word}; {corrected})"
    behind = f"at equal training FLOPs all {six} are behind, by {from_to(cores.behind(), 2)} (decided)"
    yield f"{told}; {when(cores.every_behind(), behind)}"


def claims() -> Iterator[str]:
    """Yields what the rows say."""
    yield from verdicts()
    yield from untrained.headline()
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
    yield from reading()
    yield from looping()
    yield f"At nearly equal parameters yes (at equal updates and one rate, {text.at_equal_parameters()})"
    yield text.equal_flops()
    yield text.parts()
    part = f"with 1/{hops.times_smaller()} of the parameters and equal FLOPs"
    yield f"one layer run eight times solves what eight layers solve, {part}"
    yield when(hops.none_far(), "no model answers 24 hops")
    some = any(each.verdict == "lower" for each in overview.equal_parameters())
    yield when(some, f"at equal parameters some loops are ahead, for {overview.dearer()}")
    yield from text.claims()
    yield from orbits.headline()
    yield f"reaches {speed.share_of_bound(1):.2f} of the bandwidth bound"
    yield f"and {speed.share_of_bound(32):.2f} at batch 32"
    yield f"requests at depths 1 to 8 with {speed.mixed_depths(128):.2f} times the tokens/s of lockstep batches at depth 8"
    yield "(answers of 128 tokens)"
