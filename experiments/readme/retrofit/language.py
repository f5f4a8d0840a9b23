"""What the README and docs/stars.md say about a looped language model on text and chats."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from experiments.pages import words
from experiments.readme.rows import line, when
from experiments.seeds import DECIDED, Pooled, over_seeds, pooled
from experiments.sft.plan import TRAINED
from experiments.templates import sft
from experiments.templates.words import decided, size, stands

ARMS = {"fixed": "depth 4", "fixed-penalty": "depth 4, penalty", "random": "random depth", "stars": "random depth, penalty"}
FARTHEST = 16
READ = {"chats": "answers", "text": "text"}


def beside(first: str, second: str, text: str, depth: int) -> Pooled:
    """Returns one arm less another, which both have all seeds."""
    found = pooled(sft.chats()[first], sft.chats()[second], text, depth)
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
        low, high = over_seeds(sft.risen(label, "chats"))
        cell = f"+{sft.rise(label, 'chats'):.4f} (+{low:.4f} to +{high:.4f})"
        radii = "; ".join(
            f"{mean(run['radius'][str(depth)]['radius_mean'] for run in sft.chats()[label]):.2f}" for depth in (4, 16)
        )
        yield line(name, *(f"{loss:.3f}" for loss in sft.chat_losses(label, "chats").values()), cell, radii)
    yield f"Its price at depth 4 is {on_both('random', 'fixed', TRAINED)}"
    alone = [told(beside("fixed-penalty", "fixed", text, FARTHEST), less=True) for text in READ]
    yield f"takes {alone[0]} off the loss at depth 16 on answers and {alone[1]} on text"
    yield on_both("fixed-penalty", "fixed", TRAINED)
    yield on_both("stars", "random", FARTHEST, less=True)
    for label, said in {"heal": "before fine-tuning", "fixed": "with depth 4", "random": "with random depth"}.items():
        found = sft.chat_losses(label, "text")
        yield f"{found[4]:.3f} and {found[16]:.3f} {said}"
    yield f"{right_at(4)} of {sft.asked('fixed')} questions right at depth 4"
    yield f"{right_at(16)} at depth 16"
    yield f"the 14 layers unlooped reach {sft.chat_losses('unlooped-chat', 'chats')[1]:.3f}"


def headline_claims() -> Iterator[str]:
    """Yields what the rows say in short."""
    fixed, random = ([f"{sft.rise(label, text):.3f}" for text in READ] for label in ("fixed", "random"))
    yield f"gets worse from depth 4 to 16 by {fixed[0]} nats on answers and {fixed[1]} on text with a fixed depth of 4"
    helped = all(beside("random", "fixed", text, FARTHEST).verdict == "lower" for text in READ)
    hurt = all(over_seeds(sft.risen("random", text))[0] > 0 for text in READ)
    yield when(helped and hurt, "On a looped SmolLM2 it does, and less with random depth")
    price = " and ".join(f"{beside('random', 'fixed', text, TRAINED).difference:.3f}" for text in READ)
    drawn = f"1 to 16, so that none of these depths is beyond its training, at a price of {price} at depth 4"
    yield f"by {random[0]} and {random[1]} with random depth ({drawn}; three seeds of one base)"
    tokens, flops = (sft.beside(arm) for arm in sft.ONCE)
    both = f"{size(tokens)} {stands(tokens)} at equal tokens and {size(flops)} {stands(flops)} at equal training FLOPs"
    yield f"the loop is {both} ({decided([tokens, flops])})"
    yield when(sft.answer_sides() == ["ahead"], "On answers of GSM8K, at one rate for all, it is ahead at both (one seed)")
    pairs = ("fixed-penalty", "fixed"), ("stars", "random")
    alone, further = ([beside(*pair, text, FARTHEST) for text in READ] for pair in pairs)
    less = f"{-alone[0].difference:.3f} nats on answers and {-alone[1].difference:.3f} on text"
    yield when(all(each.verdict == "lower" for each in alone), f"lowers the loss at depth 16 by {less} (decided)")
    yield when(all(each.verdict == "not resolved" for each in further), "and beside random depth no difference is decided")


def right_at(depth: int) -> str:
    """Returns how many questions each arm answers rightly by itself, all seeds together."""
    return words([sft.right(label, depth) for label in ARMS])
