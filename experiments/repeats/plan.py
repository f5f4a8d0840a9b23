"""The runs of the study: arms of one width, how much of the text they may read, rate, seed.

All read as many tokens (UPDATES batches), of TEXTS documents each: once, four or sixteen times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from experiments.asura.plan import NAIVE, SIZES

UPDATES, BATCH, LENGTH = 640, 32, 256
TEXTS = {1: 1670, 4: 390, 16: 92}  # documents by how often they are read: 5.26, 1.32 and 0.33 million tokens
MORE_TEXT = 5200  # documents for three times the updates with no token read twice: 16 million tokens
WHOLE_BATCH, WHOLE_UPDATES = 128, 1214  # one reading of all of the text: 39.8 million tokens
RATES = (1e-3, 2e-3, 5e-4, 4e-3, 8e-3)
# text that is read so often is memorised: these runs are validated on the way, and measured at their best validation as well
STOPPED, VALIDATED = 16, 32
# on which text the rates are compared, and whose rate each text takes: at sixteen readings the best one may be another
COMPARED_RATES = {4: RATES, STOPPED: (2e-3, 1e-3, 4e-3, 5e-4)}
RATE_FROM = {1: 4, 4: 4, STOPPED: STOPPED}
Rates = Mapping[tuple[str, int], float]  # by arm and how often the text is read
SHAPE = {name: str(value) for name, value in SIZES["small"].items() if name != "layers"}
LAYERS = int(SIZES["small"]["layers"])
# Huginn's kind of loop around the same blocks: one layer before and one after, two looped, a start from noise, the input joined
# to the state at every step, sandwich norms
HUGINN = {
    **NAIVE, "prelude_layers": "1", "core_layers": "2", "coda_layers": "1", "depth": "5", "injection": "{kind: concat}",
    "state": "{kind: noise, scale: 16}", "norm_placement": "[input, residual]", "end_norm": "last",
}  # fmt: skip
FLOPS, PARAMETERS = "plain, equal FLOPs", "plain, equal parameters"
# what each arm changes in ASURA's preset; the depth it trains at; how many times the updates
ARMS: dict[str, tuple[dict[str, str], str, int]] = {
    "ASURA": ({"core_layers": str(LAYERS), "depth": "3"}, "{kind: fixed, depth: 3}", 1),
    "Huginn-like": (HUGINN, "{kind: poisson-log-normal, mean: 4, sigma: 0.5, most: 12, grad_steps: 4}", 1),
    FLOPS: (
        {**NAIVE, "core_layers": "0", "prelude_layers": str(3 * LAYERS), "depth": "1"}, "{kind: fixed, depth: 1}", 1,
    ),
    PARAMETERS: (
        {**NAIVE, "core_layers": "0", "prelude_layers": str(LAYERS), "depth": "1"}, "{kind: fixed, depth: 1}", 1,
    ),
}  # fmt: skip
TUNED = tuple(ARMS)
# as few parameters, and as many FLOPs by more updates: the text is read three times as often, or there is three times as much of it
LONGER, FRESH = "plain, equal parameters, three times the updates", "plain, equal parameters, three times the text"
ARMS |= dict.fromkeys((LONGER, FRESH), (*ARMS[PARAMETERS][:2], 3))
# ASURA at other depths: only its norms, skips and adapters of each step are more or fewer
DEPTHS = {f"ASURA, depth {depth}": depth for depth in (1, 2, 4, 6, 8)}
DEPTH_RATES = (4e-3, 2e-3)  # the best of depth 3 and half of it: more steps may take less
ARMS |= {
    label: ({"core_layers": str(LAYERS), "depth": str(n), "max_steps": str(n)}, f"{{kind: fixed, depth: {n}}}", 1)
    for label, n in DEPTHS.items()
}
RATE_OF = dict.fromkeys((LONGER, FRESH), PARAMETERS)  # whose rate an arm takes that is not tuned itself
# the arms on all of the text, which is 7.6 times as much, and ASURA without a loop
ONCE = "ASURA, depth 1"
WHOLE = {f"{label}, all of the text": label for label in (*TUNED, ONCE)}
ARMS |= {label: ARMS[arm] for label, arm in WHOLE.items()}
RATE_OF |= {label: "ASURA" if arm == ONCE else arm for label, arm in WHOLE.items()}
# the depths at which the looped ones are tested as well; ASURA has norms for the steps alone that it was trained with
TESTED = {"ASURA": (1, 2, 3), "Huginn-like": (1, 2, 3, 4, 5, 6, 8, 12, 16)}
DOCUMENTS = (2, 3, 5, 8)  # of these depths, those of which the losses of single documents are kept


@dataclass(frozen=True)
class Row:
    """One training: an arm that reads its text so many times, at a rate, with a seed."""

    label: str
    times: int
    rate: float
    seed: int = 0

    @property
    def name(self) -> str:
        """The row's own name."""
        return f"{self.label}/{self.times} times/{self.rate:g}/{self.seed}"

    @property
    def kind(self) -> str:
        """What decides how long it takes."""
        return self.label

    @property
    def documents(self) -> int | None:
        """How much of the text it may read; None: all."""
        if self.label in WHOLE:
            return None
        return MORE_TEXT if self.label == FRESH else TEXTS[self.times]

    @property
    def tested(self) -> tuple[int, ...]:
        """The depths at which it is tested beside its own."""
        return TESTED.get(WHOLE.get(self.label, ""), ())

    @property
    def changes(self) -> tuple[str, ...]:
        """What is laid over the recipe."""
        model, depth, longer = ARMS[self.label]
        whole = self.label in WHOLE
        updates = WHOLE_UPDATES * self.times if whole else UPDATES * longer
        return (
            *[f"model.changes.{name}={value}" for name, value in (SHAPE | model).items()], f"depth={depth}",
            f"validate.depths=[{model['depth']}]", f"updates={updates}", f"schedule.warmup={updates // 10}",
            f"optim.lr={self.rate:g}", f"data.limit={self.documents or 'null'}", f"seed={self.seed}",
            f"graph={'true' if 'fixed' in depth else 'false'}",  # one depth: one graph
            *((f"batch={WHOLE_BATCH}", "compile=true") if whole else ()),  # long enough to be worth compiling
            *((f"validate.every={VALIDATED}", "save.best=true", "save.keep=1") if self.times == STOPPED else ()),
        )  # fmt: skip


def rates() -> Iterator[Row]:
    """Every arm at every rate, on text that is read four and sixteen times, one seed: the rate is chosen on `valid`."""
    for times, tried in COMPARED_RATES.items():
        for rate in tried:
            for label in TUNED:
                yield Row(label, times, rate)


def rate_of(best: Rates, label: str, times: int) -> float | None:
    """Returns the rate that an arm takes on a text, its own or that of the arm it repeats; None where none is chosen yet."""
    return best.get((RATE_OF.get(label, label), times if label in DEPTHS else RATE_FROM[times]))


def compared(best: Rates) -> Iterator[Row]:
    """Every arm at its own rate, three seeds, what is read most often first."""
    yield from _seeds(best, [(label, times) for times in (16, 4, 1) for label in TUNED])


def longer(best: Rates) -> Iterator[Row]:
    """The arm that makes up for its FLOPs by more updates, on text of which it reads nothing twice and on the others' text."""
    yield from _seeds(best, [(FRESH, 1), *((LONGER, times) for times in TEXTS)])


def depths(best: Rates) -> Iterator[Row]:
    """ASURA at other depths on text that is read once, the deepest first: two rates, then three seeds at the better one."""
    deepest = sorted(DEPTHS, key=lambda label: -DEPTHS[label])
    for rate in DEPTH_RATES:
        yield from (Row(label, 1, rate) for label in deepest)
    yield from _seeds(best, [(label, 1) for label in deepest], seeds=(1, 2))


def calm() -> Iterator[Row]:
    """ASURA at every depth at the smaller of its rates, the other seeds: the larger one, which is better, trains them unevenly."""
    for seed in (1, 2):
        yield from (Row(label, 1, min(DEPTH_RATES), seed) for label in ("ASURA", *DEPTHS))


def whole_text(best: Rates) -> Iterator[Row]:
    """Every arm on all of the text, which is read four times, at the rate of as many readings of little text; ASURA without a loop
    at ASURA's."""
    yield from _seeds(best, [(label, 4) for label in WHOLE])


def _seeds(best: Rates, wanted: Sequence[tuple[str, int]], seeds: Iterable[int] = range(3)) -> Iterator[Row]:
    """Yields arms on their texts at the rates that were chosen, seed by seed."""
    for seed in seeds:
        for label, times in wanted:
            if (rate := rate_of(best, label, times)) is not None:
                yield Row(label, times, rate, seed)
