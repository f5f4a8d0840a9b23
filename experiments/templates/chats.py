"""What docs/stars.md asks of the rows of a looped SmolLM2 fine-tuned on chats: depth and the penalty, on answers and on text."""

from __future__ import annotations

from statistics import mean

from experiments.seeds import Pooled, decided, over_seeds, pooled
from experiments.sft.plan import TRAINED
from experiments.sft.tables import DEPTHS as MEASURED
from experiments.templates import sft
from experiments.templates.words import Gaps

ARMS = {"fixed": "depth 4", "fixed-penalty": "depth 4, penalty", "random": "random depth", "stars": "random depth, penalty"}
PAIRS = (
    ("random depth less depth 4", "random", "fixed"),
    ("at depth 4, penalty less none", "fixed-penalty", "fixed"),
    ("at random depth, penalty less none", "stars", "random"),
)
DEPTHS = (1, 2, 4, 8, 16)  # of the table
FARTHEST, TEXTS = 16, ("chats", "text")
READ = [(text, depth) for text in TEXTS for depth in (TRAINED, FARTHEST)]


def less(first: str, second: str, text: str, depth: int = FARTHEST) -> Pooled:
    """Returns the loss of one arm less another's, which share three seeds."""
    found = pooled(sft.chats()[first], sft.chats()[second], text, depth)
    if found is None or len(found.seeds) != 3:
        raise ValueError(f"{first} and {second} share {0 if found is None else len(found.seeds)} seeds; allowed: three")
    return found


def helps() -> bool:
    """Whether random depth is ahead at depth 16 on both texts, and still hurt by depth."""
    ahead = all(less("random", "fixed", text).verdict == "lower" for text in TEXTS)
    return ahead and all(over_seeds(sft.risen("random", text))[0] > 0 for text in TEXTS)


def penalty_helps_alone() -> bool:
    """Whether the penalty is ahead at depth 16 on both texts at a fixed depth, and nowhere decided beside random depth."""
    alone = {less("fixed-penalty", "fixed", text).verdict for text in TEXTS}
    return alone == {"lower"} and {less("stars", "random", *where).verdict for where in READ} == {"not resolved"}


def word(values: list[float]) -> str:
    """Returns whether a mean over seeds is decided."""
    return decided(over_seeds(values))


def radii(label: str) -> list[float]:
    """Returns the spectral radius on text at the trained depth and at the farthest, the mean over seeds."""
    return [mean(run["radius"][str(depth)]["radius_mean"] for run in sft.chats()[label]) for depth in (TRAINED, FARTHEST)]


def answered(depth: int) -> list[int]:
    """Returns how many questions each arm answers rightly by itself, all seeds together."""
    return [sft.right(label, depth) for label in ARMS]


def right(label: str, depth: int) -> list[float]:
    """Returns the share of chats in percent whose result is right after the true reasoning, seed by seed."""
    return [100 * run["results"][MEASURED.index(depth)] for run in sft.chats()[label]]


def gap(first: list[float], second: list[float]) -> Gaps:
    """Returns one row less another, seed by seed."""
    return Gaps(tuple(a - b for a, b in zip(first, second, strict=True)))
