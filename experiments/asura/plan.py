"""The rows of the ASURA study: from scratch on one text, at two sizes, each beside a plain transformer of equal FLOPs and one of
equal parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from experiments.study import Named

STEPS = 3
SIZES = {
    "small": {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4, "layers": 4},
    "middle": {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 6, "layers": 6},
}
NAIVE = {
    "injection": "{kind: none}", "end_norm": "never", "layer_post_norm": "none", "adapters": "[]",
    "max_steps": "null",
}  # fmt: skip
WHOLE, WITHOUT_SKIP, ONE_PROJECTION = "ASURA", "without the projected skip", "one projection for all steps"
# what each row takes from ASURA, or gives it instead
LOOPED: dict[str, dict[str, str]] = {
    WHOLE: {},
    "ASURA with LoRA": {"adapters": "[{kind: low-rank, rank: 16, targets: branches}]"},
    "naive universal": NAIVE,
    WITHOUT_SKIP: {"injection": "{kind: none}"},
    "one norm for all steps": {"end_norm": "every"},
    "without norms after layers": {"layer_post_norm": "none"},
    "without adapters": {"adapters": "[]"},
    ONE_PROJECTION: {"injection": "{kind: concat, bias: true}"},
}
COMPARED = (WHOLE, "naive universal", "plain, equal FLOPs", "plain, equal parameters")
# rate and warm-up at which the middle size is tried once more without its skip: at 1e-3 and 60 updates it does not train
CALMER = ((3e-4, 60), (1e-3, 200), (3e-4, 200))
# the middle size on all of the text, 39.8 million tokens, each read once: what is compared there, and at which rates
ALL_TEXT, ALL_UPDATES = "middle, all of the text", 2428
ALL_COMPARED, ALL_RATES = (WHOLE, "plain, equal FLOPs"), (1e-3, 2e-3)

# rows once more on all twelve training files: others of the same label drew their batches from the first five
TWELVE = ", twelve files"
AGAIN = {
    "middle": ("ASURA with LoRA", "one norm for all steps", "without adapters"),
    "small": ("ASURA with LoRA", WITHOUT_SKIP, "one norm for all steps", "without norms after layers", "without adapters"),
}
# one projection for all steps, started as those of each step (experiments.asura.parts)
LARGER_START = f"{ONE_PROJECTION}, larger start"


@dataclass(frozen=True)
class Row(Named):
    """One row with one seed: the size, what is changed in the preset, and whether it is looped."""

    named_by = ("size", "label", "seed")
    alike_by = ("size",)

    size: str
    label: str
    changes: tuple[str, ...]
    seed: int = 0
    schedule: tuple[str, ...] = ()  # laid over all else

    @property
    def looped(self) -> bool:
        """Whether it has a core."""
        return not self.label.startswith("plain")


def rows() -> Iterator[Row]:
    """All rows, the first seed of each before the others."""
    for seed in range(3):
        for size in SIZES:
            for label, changes in all_of(size).items():
                yield Row(size, label, _laid(changes), seed)
        if seed == 0:
            yield from _calmer(WITHOUT_SKIP)
            yield from _all_text()
    yield from pairs()


def pairs() -> Iterator[Row]:
    """The rows that give every part an ASURA that read the same batches, those that take longest first: ASURA on all twelve files,
    one projection from the larger start, ASURA at the calmer schedules, and seed 0 of the parts whose other seeds read twelve."""
    for size in ("middle", "small"):
        known = all_of(size)
        for seed in range(3):
            yield Row(size, f"{WHOLE}{TWELVE}", _laid(known[WHOLE]), seed)
        for seed in range(3):
            yield Row(size, LARGER_START, _laid({**known[ONE_PROJECTION], "injection": "{kind: concat-larger-start}"}), seed)
        if size == "middle":
            yield from _calmer(WHOLE)
        for label in AGAIN[size]:
            yield Row(size, f"{label}{TWELVE}", _laid(known[label]))


def at_schedule(label: str, rate: float, warmup: int) -> str:
    """Returns what a row with a rate and a warm-up of its own is called."""
    return f"{label}, rate {rate:g}, warm-up {warmup}"


def _calmer(label: str) -> Iterator[Row]:
    changes = _laid(all_of("middle")[label])
    for rate, warmup in CALMER:
        own = (f"optim.lr={rate:g}", f"schedule.warmup={warmup}")
        yield Row("middle", at_schedule(label, rate, warmup), changes, schedule=own)


def _all_text() -> Iterator[Row]:
    long = (f"updates={ALL_UPDATES}", f"schedule.warmup={ALL_UPDATES // 10}", "compile=auto")  # it is worth compiling
    for rate in ALL_RATES:
        for label in ALL_COMPARED:
            changes = _laid(all_of("middle")[label])
            yield Row(ALL_TEXT, f"{label}, rate {rate:g}", changes, schedule=(*long, f"optim.lr={rate:g}"))


def _laid(changes: dict[str, str]) -> tuple[str, ...]:
    return tuple(f"model.changes.{name}={value}" for name, value in changes.items())


def all_of(size: str) -> dict[str, dict[str, str]]:
    """Returns what each row of a size changes in the preset."""
    shape = {name: str(value) for name, value in SIZES[size].items() if name != "layers"}
    layers = int(SIZES[size]["layers"])
    found = {label: {**shape, "core_layers": str(layers), "depth": str(STEPS), **changes} for label, changes in LOOPED.items()}
    for label, count in (("plain, equal FLOPs", layers * STEPS), ("plain, equal parameters", layers)):
        found[label] = {**shape, **NAIVE, "core_layers": "0", "prelude_layers": str(count), "depth": "1"}
    return found
