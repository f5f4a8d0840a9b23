"""What is trained: a looped retrofit and unlooped controls on text, then arms of fine-tuning on chats; each a changed recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loopwright.training.recipe import Recipe

HERE = Path(__file__).parent
LAYERS = (*range(4), *range(20, 26), *range(26, 30))  # of 30: the first four, the last ten; the gap is dropped
DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)
TRAINED = 4  # the fixed depth of the base, to which its training grows
BEYOND = (16,)  # depths at which arms are compared with one another, beside the trained one
DENSE = "model={kind: load, source: runs/sft/base}"
FIXED = f"depth={{kind: fixed, depth: {TRAINED}}}"
TEXT: dict[str, tuple[str, ...]] = {
    "heal": (),
    "unlooped": (DENSE, "depth={kind: fixed, depth: 1}"),
    "unlooped-flops": (DENSE, "depth={kind: fixed, depth: 1}"),  # as many updates as make the same FLOPs
}
CHAT: dict[str, tuple[str, ...]] = {
    "fixed": (FIXED, "penalties=[]"),
    "random": ("penalties=[]",),
    "fixed-penalty": (FIXED,),
    "stars": (),
    "unlooped-chat": ("depth={kind: fixed, depth: 1}", "penalties=[]"),
}
WORDS = {
    "heal": "looped (4, 6, 4), text alone", "unlooped": "the 14 layers unlooped, equal tokens",
    "unlooped-flops": "the 14 layers unlooped, equal FLOPs", "fixed": "chats, depth 4", "random": "chats, random depth",
    "fixed-penalty": "chats, depth 4, penalty", "stars": "chats, random depth, penalty", "unlooped-chat": "chats, unlooped",
}  # fmt: skip


@dataclass(frozen=True)
class Places:
    """Where a study finds what it needs and puts what it makes."""

    data: str
    runs: str

    @property
    def base(self) -> Path:
        """The dense model."""
        return Path(self.runs) / "base"

    @property
    def shards(self) -> str:
        """The tokens that all runs share."""
        return str(Path(self.runs) / "shards")

    def model(self, run: Run) -> Path:
        """The folder that a run's model is saved in."""
        return Path(self.runs) / run.name.replace("/", "-")


@dataclass(frozen=True)
class Run:
    """One model of the study."""

    label: str
    seed: int = 0

    @property
    def name(self) -> str:
        """Its own name."""
        return f"{self.label}/{self.seed}"

    @property
    def kind(self) -> str:
        """What takes about as long: the seeds of a label, since chats at random depth take longer than unlooped ones."""
        return self.label

    @property
    def looped(self) -> bool:
        """Whether its model has a core."""
        return not self.label.startswith("unlooped")

    @property
    def source(self) -> Run:
        """The run whose model is fine-tuned: one of text, of seed 0 whatever the seed of this one."""
        return Run("heal" if self.looped else "unlooped")

    def recipe(self, places: Places, changes: Sequence[str] = ()) -> Recipe:
        """Returns the whole recipe; changes that begin with "heal." or "chat." are for the stage of that name alone, those that
        begin with "looped." for models with a core."""
        from loopwright.recipes import recipe

        stage = "heal" if self.label in TEXT else "chat"
        own, data, base = list(self.asked(changes)), Path(places.data), places.base
        if stage == "heal":
            files = [
                f"data.files={data / 'train*.jsonl*'}",
                f"data.valid_files={data / 'valid.jsonl*'}",
                f"data.tokenizer={base}",
            ]
            found = [*files, *TEXT[self.label], f"model.source={base}"]
        else:
            files = [
                f"data.files={data / 'chats.jsonl'}",
                f"data.valid_files={data / 'chats-test.jsonl'}",
                f"data.tokenizer={base}",
            ]
            found = [*files, *CHAT[self.label], f"model.source={places.model(self.source)}"]
        chosen = recipe(str(HERE / f"{stage}.yaml"), [*found, f"seed={self.seed}", *own])
        if self.label != "unlooped-flops":
            return chosen
        updates = chosen.updates * text_flops(Run("heal").recipe(places, changes)) / text_flops(chosen)
        return recipe(str(HERE / "heal.yaml"), [*found, f"seed={self.seed}", *own, f"updates={round(updates)}"])

    def asked(self, changes: Sequence[str]) -> Iterator[str]:
        """Yields the changes that are for this run, without the word that says so."""
        meant = {"heal.": self.label in TEXT, "chat.": self.label in CHAT, "looped.": self.looped}
        for change in changes:
            first = next((word for word in meant if change.startswith(word)), "")
            if meant.get(first, True):
                yield change.removeprefix(first)


def text_flops(chosen: Recipe) -> int:
    """Returns the training FLOPs of a recipe whose rows are all of one length, at the depths it will draw."""
    from loopwright.model.cost import TRAINING_FACTOR, pass_flops
    from loopwright.schema import build_kind
    from loopwright.training.depth import RULES
    from loopwright.training.model import MODELS
    from loopwright.training.trainable import drawn_plans

    config = build_kind(chosen.model, MODELS).build(0).config
    size = {"batch": chosen.batch // chosen.accumulate, "length": chosen.data["length"]}
    depths = Counter(plan.depth for plan in drawn_plans(build_kind(chosen.depth, RULES), chosen))
    passes = (pass_flops(config, depth=depth if config.is_looped else None, **size)["total"] * depths[depth] for depth in depths)
    return TRAINING_FACTOR * sum(passes)


def text_runs() -> Iterator[Run]:
    """Yields the runs on text that fine-tuning begins from."""
    yield Run("heal")
    yield Run("unlooped")


def later_runs(seeds: Sequence[int]) -> Iterator[Run]:
    """Yields what is measured, what is wanted most first: the arms seed by seed, those on text among them."""
    arms = [[Run(label, seed) for label in CHAT if label != "unlooped-chat"] for seed in seeds]
    first, *others = arms or [[]]
    yield from (*first, *map(Run, TEXT), *chain(*others), *(Run("unlooped-chat", seed) for seed in seeds))
