"""What docs/stars.md and docs/when-to-loop-retrofit.md say about a looped language model on text and chats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from statistics import mean

from experiments.ouroboros.plan import BEST, BEST_STATIC
from experiments.pages import Result, words
from experiments.readme.retrofit import ouroboros, wide
from experiments.readme.rows import RESULTS, line, when
from experiments.seeds import DECIDED, Pooled, averaged, mean_loss, over_seeds, pooled, reports
from experiments.sft.plan import TRAINED
from experiments.sft.tables import read
from loopwright.evaluate.paired import Paired, compare

ARMS = {"fixed": "depth 4", "fixed-penalty": "depth 4, penalty", "random": "random depth", "stars": "random depth, penalty"}
FARTHEST = 16
TOKENS = 20_388_948  # of the training text
TEXTS = {"heal": "looped, at depth 4", "unlooped": "run once, equal tokens", "unlooped-flops": "run once, equal FLOPs"}
READ = {"chats": "answers", "text": "text"}


@cache
def runs_of() -> dict[str, list[Result]]:
    """Returns the runs by label."""
    return read(RESULTS / "sft/rows.jsonl")


def losses(label: str, text: str) -> dict[int, float]:
    """Returns the loss of a text by depth, the mean over seeds."""
    found = [run["texts"][text] for run in runs_of()[label]]
    return {depth: mean(each["loss"][place] for each in found) for place, depth in enumerate(found[0]["depth"])}


def risen(label: str, text: str) -> tuple[float, float, float]:
    """Returns how much higher the loss is at the largest depth than at the trained one, with its interval over seeds."""
    found = [mean_loss([each], FARTHEST) - mean_loss([each], TRAINED) for each in reports(runs_of()[label], text)]
    return mean(found), *over_seeds(found)


def beside(first: str, second: str, text: str, depth: int) -> Pooled:
    """Returns one arm less another, which both have all seeds."""
    found = pooled(runs_of()[first], runs_of()[second], text, depth)
    if found is None or len(found.seeds) != 3:
        raise ValueError(f"{first} and {second} share {0 if found is None else len(found.seeds)} seeds; allowed: three")
    return found


def told(found: Pooled, digits: int = 3, *, less: bool = False) -> str:
    """Returns a difference, its interval over seeds, and whether it is decided; `less`: how much lower the first loss is."""
    if (found.difference < 0) != less:
        raise ValueError(f"the first loss is {found.difference:+.4f} from the second; the page says {'less' if less else 'more'}")
    ends = sorted(found.over_seeds, key=abs)
    signs = ["−" if (end < 0) != (found.difference < 0) else "" for end in ends]
    low, high = (f"{sign}{abs(end):.{digits}f}" for sign, end in zip(signs, ends, strict=True))
    return f"{abs(found.difference):.{digits}f} ({low} to {high}, {DECIDED[found.verdict]})"


def on_both(first: str, second: str, depth: int, *, less: bool = False) -> str:
    """Returns how much higher the loss of an arm is than another's, or how much lower, on answers and on text."""
    return " and ".join(f"{told(beside(first, second, text, depth), 4, less=less)} on {name}" for text, name in READ.items())


def chat_claims() -> Iterator[str]:
    """Yields what the rows say about the arms."""
    for label, name in ARMS.items():
        rise, low, high = risen(label, "chats")
        cell = f"+{rise:.4f} (+{low:.4f} to +{high:.4f})"
        radii = "; ".join(f"{mean(run['radius'][str(depth)]['radius_mean'] for run in runs_of()[label]):.2f}" for depth in (4, 16))
        yield line(name, *(f"{loss:.3f}" for loss in losses(label, "chats").values()), cell, radii)
    yield f"Its price at depth 4 is {on_both('random', 'fixed', TRAINED)}"
    alone = [told(beside("fixed-penalty", "fixed", text, FARTHEST), less=True) for text in READ]
    yield f"takes {alone[0]} off the loss at depth 16 on answers and {alone[1]} on text"
    yield on_both("fixed-penalty", "fixed", TRAINED)
    yield on_both("stars", "random", FARTHEST, less=True)
    for label, said in {"heal": "before fine-tuning", "fixed": "with depth 4", "random": "with random depth"}.items():
        found = losses(label, "text")
        yield f"{found[4]:.3f} and {found[16]:.3f} {said}"
    asked = sum(run["answers"]["questions"] for run in runs_of()["fixed"])
    yield f"{right_at(4)} of {asked} questions right at depth 4"
    yield f"{right_at(16)} at depth 16"
    yield f"the 14 layers unlooped reach {losses('unlooped-chat', 'chats')[1]:.3f}"


def headline_claims() -> Iterator[str]:
    """Yields what the rows say in short."""
    fixed, random = ([f"{risen(label, text)[0]:.3f}" for text in READ] for label in ("fixed", "random"))
    yield f"gets worse from depth 4 to 16 by {fixed[0]} nats on answers and {fixed[1]} on text with a fixed depth of 4"
    helped = all(beside("random", "fixed", text, FARTHEST).verdict == "lower" for text in READ)
    hurt = all(risen("random", text)[1] > 0 for text in READ)
    yield when(helped and hurt, "On a looped SmolLM2 it does, and less with random depth")
    price = " and ".join(f"{beside('random', 'fixed', text, TRAINED).difference:.3f}" for text in READ)
    drawn = f"1 to 16, so that none of these depths is beyond its training, at a price of {price} at depth 4"
    yield f"by {random[0]} and {random[1]} with random depth ({drawn}; three seeds of one base)"
    yield f"the loop is {wide.short()}"
    yield f"On {ahead_on_answers()}"
    pairs = ("fixed-penalty", "fixed"), ("stars", "random")
    alone, further = ([beside(*pair, text, FARTHEST) for text in READ] for pair in pairs)
    less = f"{-alone[0].difference:.3f} nats on answers and {-alone[1].difference:.3f} on text"
    yield when(all(each.verdict == "lower" for each in alone), f"lowers the loss at depth 16 by {less} (decided)")
    yield when(all(each.verdict == "not resolved" for each in further), "and beside random depth no difference is decided")


def right_at(depth: int) -> str:
    """Returns how many questions each arm answers rightly by itself, all seeds together."""
    answers = [[run["answers"] for run in runs_of()[label]] for label in ARMS]
    return words([sum(each["right"][each["depth"].index(depth)] for each in own) for own in answers])


def text_claims() -> Iterator[str]:
    """Yields what the rows say about the looped model beside unlooped ones."""
    for label, name in TEXTS.items():
        run, loss = runs_of()[label][0], losses(label, "text")
        if run["tokens"] > TOKENS:
            raise ValueError(f"{label}: {run['tokens']:,} tokens of a text of {TOKENS:,}; allowed: none twice")
        tokens, answers = f"{run['tokens'] / 1e6:.1f}", losses(label, "chats")
        cells = [f"{run['losses'][-1]:.2f}", f"{loss.get(4, loss[1]):.3f}", f"{answers.get(4, answers[1]):.3f}"]
        yield line(name, tokens, f"{run['flops'] / 1e15:.1f}", *cells)
    loss = losses("heal", "text")
    yield f"{loss[8]:.3f} at depth 8, {loss[16]:.3f} at 16. Below it, it is of no use ({loss[2]:.2f} at depth 2)"
    side, far = apart(("heal", "unlooped"), "text")
    yield f"{side} by {far}"
    side, far = apart(("heal", "unlooped-flops"), "text")
    yield f"{side} by {far}"
    (side, first), (other, second) = (apart(("heal", label), "chats") for label in ("unlooped", "unlooped-flops"))
    yield f"{side} there by {first} and {'' if other == side else f'{other} by '}{second}"
    random, fixed = (f"{risen(label, 'text')[0]:.3f}" for label in ("random", "fixed"))
    yield f"On text the loss still rises by {random} from depth 4 to 16, where it rises by {fixed} at a fixed depth"
    side, far = apart(("fixed", "unlooped-chat"), "chats")
    yield f"{side} on answers by {far}"
    side, far = apart(("fixed", "unlooped-chat"), "text")
    yield f"on text it is now {side} by {far}"


def brief_claims() -> Iterator[str]:
    """Yields what the first table of docs/when-to-loop-retrofit.md says about retrofits."""
    on_answers = f"on answers of GSM8K {' and '.join(sorted(answer_sides()))} of both (one seed, one rate for all)"
    yield f"{wide.cell()}; {on_answers}"
    yield f"{wide.RATED}, is {wide.short()}"
    yield wide.exits_in_short()
    yield f"On {ahead_on_answers()}"
    (tables, first), (controller, second) = (ouroboros.behind_once(name) for name in (BEST_STATIC, BEST))
    yield f"{tables:.3f} nats behind with low-rank tables per step ({first}), {controller:.3f} behind with a controller ({second})"


def answer_sides() -> set[str]:
    """Returns where the wide-core retrofit stands on answers to layers run once, on equal tokens and at equal FLOPs."""
    return {side_of(gap(("heal", label), "chats")) for label in ("unlooped", "unlooped-flops")}


def ahead_on_answers() -> str:
    """Returns that the wide-core retrofit is ahead on answers, of layers run once on equal tokens and at equal FLOPs."""
    return when(answer_sides() == {"ahead"}, "answers of GSM8K, at one rate for all, it is ahead at both (one seed)")


def apart(labels: Sequence[str], text: str) -> tuple[str, str]:
    """Returns whether a looped model at its depth is ahead of an unlooped one, and how far, with the interval over documents."""
    found = gap(labels, text)
    low, high = sorted((abs(found.difference_low), abs(found.difference_high)))
    return side_of(found), f"{abs(found.difference):.3f} nats ({low:.3f} to {high:.3f})"


def gap(labels: Sequence[str], text: str) -> Paired:
    """Returns a looped model at its depth less an unlooped one, paired by passages; one that is not resolved is refused."""
    first, second = (reports(runs_of()[label], text) for label in labels)
    found = compare(averaged(first, TRAINED), averaged(second, 1))
    if found.difference_low * found.difference_high < 0:
        raise ValueError(f"{labels}: the interval holds 0; allowed: a difference")
    return found


def side_of(found: Paired) -> str:
    """Returns where the first of two models stands."""
    return "ahead" if found.difference < 0 else "behind"
