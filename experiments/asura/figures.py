"""The ASURA study's figures: training loss and gradient norm by update, a panel per size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from experiments.asura.pairing import Labels, wholes
from experiments.asura.plan import COMPARED, LARGER_START, LOOPED, TWELVE, WHOLE
from experiments.seeds import shared
from loopwright.plot.drawing import Axes, Curve, Drawing, finite, line_style, log_axis, panels
from loopwright.plot.style import COLOURS, INK

WINDOW = 20  # updates that one number of a run's log stands for
FIRST = 100  # warm-up: below it all curves fall alike, and would take the axis for themselves
FAR = 0.5  # nats above ASURA; a row that stays beyond would take the axis for itself, and is named instead


def draw_all(sizes: Mapping[str, Labels]) -> dict[str, Drawing]:
    """Returns every figure by its name."""
    parts = [f"{WHOLE}{TWELVE}", *(label for label in LOOPED if label not in ("naive universal", WHOLE)), LARGER_START]
    made = {
        "losses": (COMPARED, "losses", losses, "training loss (nats)", False),
        "losses-parts": (parts, "losses", above_whole, "loss less ASURA's (nats)", False),
        "gradients-parts": (parts, "gradient_norms", norms, "gradient norm", True),
    }
    drawings = {}
    for name, (rows, key, curve, title, logarithmic) in made.items():
        draws = [panel(size, labels, rows, key, curve, title, logarithmic) for size, labels in sizes.items()]
        if draws:
            drawings[name] = panels(draws, columns=1, height=2.1 + 0.15 * len(rows))
    return drawings


def panel(
    size: str, labels: Labels, rows: Sequence[str], key: str, curve: Callable[[Labels, str, str], Curve | None], title: str,
    logarithmic: bool,
) -> Callable[[Axes], None]:  # fmt: skip
    """Returns what draws one size: a line per row with the range of its seeds."""

    def draw(axes: Axes) -> None:
        shown: dict[str, Curve] = {}
        far: list[str] = []
        for place, label in enumerate(rows):
            found = curve(labels, label, key)
            if found is None:  # its place in the order of colours stays its own: a row looks the same in every figure of parts
                continue
            if curve is above_whole and min(found.y) > FAR:
                far.append(f"{label}: above the axis, {found.y[-1]:.2f} at the end")
                axes.plot([], [], label=label, linewidth=1.6, **line_style(place, marker=False))
                continue
            shown[label] = found
            x, y = finite(found.x, found.y)
            axes.plot(x, y, label=label, linewidth=1.6, **line_style(place, marker=False))
            if found.low is not None and found.high is not None:
                axes.fill_between(found.x, found.low, found.high, color=COLOURS[place % len(COLOURS)], alpha=0.2, linewidth=0)
        if curve is above_whole:
            axes.text(0.99, 0.98, "\n".join(far), transform=axes.transAxes, ha="right", va="top", fontsize=8)
            axes.axhline(0, color=INK, linewidth=0.8)  # a dashed one would look like a row
        if logarithmic:
            log_axis(axes, shown)
        axes.set_title(size)
        axes.set_xlabel("update")
        axes.set_ylabel(title)

    return draw


def losses(labels: Labels, label: str, key: str) -> Curve | None:
    """Returns the mean training loss over seeds with their range, from the end of warm-up on."""
    return _over_seeds([run[key] for run in labels.get(label, [])], FIRST)


def norms(labels: Labels, label: str, key: str) -> Curve | None:
    """Returns the mean over seeds of the largest gradient norm of each window, with their range, from the first update on."""
    return _over_seeds([run[key] for run in labels.get(label, [])], 0)


def above_whole(labels: Labels, label: str, key: str) -> Curve | None:
    """Returns a row's training loss less that of the ASURA row that saw the same batches; None of ASURA itself."""
    runs = labels.get(label, []) if label != f"{WHOLE}{TWELVE}" else []
    both = shared(runs, wholes(runs, labels))
    return _over_seeds([[a - b for a, b in zip(one[key], two[key], strict=False)] for one, two in both], FIRST)


def _over_seeds(series: Sequence[Sequence[float]], first: int) -> Curve | None:
    if not series:
        return None
    count = min(map(len, series))
    kept = [i for i in range(count) if (i + 1) * WINDOW > first] or list(range(count))
    columns = [[values[i] for values in series] for i in kept]
    x = [(i + 0.5) * WINDOW for i in kept]
    ends = ([min(c) for c in columns], [max(c) for c in columns]) if len(series) > 1 else (None, None)
    return Curve(x, [sum(c) / len(c) for c in columns], *ends)
