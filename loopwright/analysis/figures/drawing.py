"""How figures are drawn: SVG text, colour-blind safe, readable at phone width, the same bytes each time.

Lines of text and axes take the colour of the page around them (`currentColor`), so that a figure fits light and dark pages.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwright.storage.files import write_whole

INK = "#1b1f24"  # drawn with, then replaced by the colour of the page's text
# Okabe and Ito's palette without yellow, black last; each line also has its own marker and dash
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", INK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple[Any, ...] = (
    "-", (0, (5, 1.5)), (0, (2, 1.2)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 1)),
)  # fmt: skip
EARLY, LATE = "#56B4E9", "#D55E00"  # the ends of a path: seen on light and on dark
WIDTH, HEIGHT = 5.2, 3.5  # inches
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
LONGEST_OF_TWO = 24  # letters of a name where two names stand side by side under a figure
LETTERS = 56  # of names, with what stands beside them, in one line under panels
MOST_LABELLED_CELLS = 100
SHADES = 20
CELLS = 800  # pixels of a matrix's longer side, or a few less
SEEN = 0.05  # points: a line that leaves out less than this looks the same
LONGEST_RUN = 64  # points that one piece of line stands for, at most
LINEAR_STEPS = 32
FEW_DECADES = 100  # up to this ratio a logarithmic axis is labelled between the powers of ten too
MOST_POINTS = 500  # of a loss curve: more are not seen, and make a heavy file
SMOOTHED_OVER = 25  # a loss curve's bold line is the mean of this share of it, one part in …

Axes = Any  # matplotlib's own, which is imported where something is drawn
Numbers = Sequence[float | None]  # None: not finite, left out


@dataclass(frozen=True)
class Curve:
    """A line: x and y, and where there is one the interval around y."""

    x: Sequence[float]
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None


def figure(draw: Callable[[Axes], None], path: str | Path | None, *, width: float = WIDTH, height: float = HEIGHT) -> str:
    """Returns the SVG text of what `draw` draws on one pair of axes, and writes it where a path is given."""
    from matplotlib.figure import Figure

    with _style():
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots()
        draw(axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True)
    return _kept(_plain_svg(buffer.getvalue()), path)


def panels(
    draws: Sequence[Callable[[Axes], None]],
    path: str | Path | None = None,
    *,
    columns: int = 2,
    height: float = 2.9,
    legend_columns: int | None = None,
) -> str:
    """Returns the SVG text of several pairs of axes side by side, each drawn by its own function, with one legend below (in as
    many columns as short names fill, unless it is said)."""
    from matplotlib.figure import Figure

    columns = min(columns, len(draws))
    rows = -(-len(draws) // columns)
    with _style():
        made = Figure(figsize=(WIDTH / 2 * columns + (columns == 1) * WIDTH / 2, height * rows), layout="constrained")
        axes = made.subplots(rows, columns, squeeze=False).flatten()
        for draw, each in zip(draws, axes, strict=False):
            draw(each)
        for each in axes[len(draws) :]:
            each.set_visible(False)
        labelled = {label: handle for each in axes for handle, label in zip(*each.get_legend_handles_labels(), strict=True)}
        if labelled:
            across = LETTERS // (max(map(len, labelled)) + 5)  # beside each name stands its line
            ncols = legend_columns or max(1, min(len(labelled), across))
            made.legend(labelled.values(), labelled.keys(), loc="outside lower center", frameon=False, ncols=ncols)
        buffer = io.StringIO()
        made.savefig(buffer, format="svg", transparent=True)
    return _kept(_plain_svg(buffer.getvalue()), path)


def mosaic(
    axes: Axes,
    values: Sequence[Numbers],
    colours: str,
    *,
    low: float | None = None,
    high: float | None = None,
    power: float = 1,
) -> Any:
    """Draws a matrix, its first row on top, and returns what a colour bar takes. It is a bitmap, some pixels to a cell: sharp when
    made larger, even when made smaller; a path per cell would make a file of megabytes. What is not a number is left clear.
    A `power` below 1 tells small values apart."""
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.colors import PowerNorm

    shown = np.array([[math.nan if value is None else value for value in row] for row in values], dtype=float)
    real = shown[np.isfinite(shown)].tolist() or [0.0, 1.0]
    scale = PowerNorm(power, min(real) if low is None else low, max(real) if high is None else high)
    extent = (0, len(values[0]), len(values), 0)
    shaded = colormaps[colours].resampled(SHADES)
    pixels = max(1, CELLS // max(len(values), len(values[0])))
    grown = shown.repeat(pixels, axis=0).repeat(pixels, axis=1)
    axes.grid(False)
    return axes.imshow(grown, cmap=shaded, norm=scale, extent=extent, interpolation="none", aspect="auto")


def shades(first: str, last: str, count: int) -> list[str]:
    """Returns colours that go evenly from one to another."""
    return [blend(first, last, i / max(count - 1, 1)) for i in range(count)]


def _kept(text: str, path: str | Path | None) -> str:
    if path is not None:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    return text


@contextmanager
def _style() -> Iterator[None]:
    from matplotlib import rc_context, rcdefaults

    # the reader's own settings must not change the bytes
    with rc_context():
        rcdefaults()
        with rc_context({
            "svg.fonttype": "none", "svg.hashsalt": "loopwright", "text.parse_math": False,
            "font.family": "DejaVu Sans", "font.size": 10.5, "axes.titlesize": 11, "axes.titleweight": "bold",
            "axes.labelsize": 10.5, "legend.fontsize": 10,
            "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
            "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.8, "axes.grid": True, "axes.grid.axis": "y",
            "grid.color": INK, "grid.alpha": 0.15, "grid.linewidth": 0.6, "axes.axisbelow": True,
        }):  # fmt: skip
            yield


def _plain_svg(text: str) -> str:
    """Returns the drawing alone: no prolog, no date or other metadata, the page's fonts and text colour, and names for what it
    refers to that no other drawing on the page has."""
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"\s*<defs>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)  # it would style the whole page
    text = text.replace("<svg ", "<svg style=\"stroke-linejoin: round; font-family: 'DejaVu Sans'\" ", 1)
    text = text.replace("font-family: 'DejaVu Sans'; ", "")  # all text inherits it
    text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
    used, own = {name for _, name in re.findall(_REFERENCE, text)}, f"f{hashlib.sha256(text.encode()).hexdigest()[:6]}"
    text = re.sub(r' id="([^"]+)"', lambda match: f' id="{own}-{match[1]}"' if match[1] in used else "", text)
    text = re.sub(_REFERENCE, lambda match: f"{match[1]}{own}-{match[2]}", text)
    text = re.sub(r' d="([^"]+)"', lambda match: f' d="{_straight(match[1])}"', text)
    text = re.sub(r' (?:d|x|y)="[^"]+"', lambda match: re.sub(r"-?\d+\.\d{3,}", _short, match[0]), text)
    text = re.sub(_BITMAP, lambda match: match[1] + _palette(match[2]), text)
    text = re.sub(r"image-rendering:[^;\"]+;?", "", text)  # matplotlib asks for hard pixels, which are uneven when made smaller
    text = text.replace("'DejaVu Sans'", FONTS).replace(INK, "currentColor")
    return re.sub(r"\s*\n\s*", "\n", text)


def _palette(coded: str) -> str:
    """Returns a bitmap (PNG, base64) of few colours with a table of them: the same pixels in a fraction of the bytes."""
    import numpy as np
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(coded))).convert("RGBA"))
    packed = np.ascontiguousarray(pixels).view(np.uint32)[..., 0]  # a colour in one number: rows are far slower to sort
    found = np.unique(packed)
    if len(found) > 256:
        return coded
    colours = found[:, None].view(np.uint8)
    made = Image.fromarray(np.searchsorted(found, packed).astype(np.uint8), "P")
    made.putpalette(colours[:, :3].tobytes())
    buffer = io.BytesIO()
    made.save(buffer, format="png", optimize=True, transparency=colours[:, 3].tobytes())
    return base64.b64encode(buffer.getvalue()).decode()


def _straight(outline: str) -> str:
    """Returns the lines of an outline without the points that nobody would miss; an outline with curves as it is."""
    pieces = re.findall(r"M ([^Mz]+)(z?)", outline)
    if "C" in outline or "Q" in outline or not pieces:
        return outline
    made = []
    for body, end in pieces:
        points = [complex(*map(float, pair.split())) for pair in body.split("L")]
        kept = " L ".join(f"{point.real:.6f} {point.imag:.6f}" for point in _needed(points))
        made.append(f"M {kept} {end}".rstrip())
    return " ".join(made)


def _needed(points: Sequence[complex]) -> list[complex]:
    kept, start = [points[0]], 0
    for end in range(2, len(points)):
        far = end - start > LONGEST_RUN  # or a long straight line would take the square of its points
        if far or any(_apart(points[i], points[start], points[end]) > SEEN for i in range(start + 1, end)):
            start = end - 1
            kept.append(points[start])
    return [*kept, points[-1]] if len(points) > 1 else kept


def _apart(point: complex, a: complex, b: complex) -> float:
    """Returns how far a point is from the piece of line between two others."""
    along = b - a
    size = abs(along) ** 2  # zero also where a length is too small to be squared
    share = ((point - a) * along.conjugate()).real / size if size else 0.0
    return abs(point - a - min(max(share, 0.0), 1.0) * along)


def _short(match: re.Match[str]) -> str:
    # a hundredth of a point is not seen, and digits are most of a drawing's bytes
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")


_BITMAP = r'(xlink:href="data:image/png;base64,\s*)([^"]+)'
_REFERENCE = r"""(href="#|url\(#)([\w.]+)"""


def line_style(place: int, *, marker: bool = True) -> dict[str, Any]:
    """Returns the colour, dash and marker of the line at a place; where colours come again, dash and marker are others."""
    form = place + place // len(COLOURS)
    line_style = {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[form % len(DASHES)]}
    return line_style | ({"marker": MARKERS[form % len(MARKERS)], "markersize": 4.5} if marker else {})


START = {"marker": "o", "linestyle": "none", "markerfacecolor": "none", "markeredgecolor": INK, "markersize": 6.5}
END = {"marker": "s", "linestyle": "none", "color": LATE, "markersize": 6}


def blend(first: str, last: str, share: float) -> str:
    """Returns the colour that lies `share` of the way between two."""
    pairs = ((int(first[i : i + 2], 16), int(last[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def lines(axes: Axes, curves: Mapping[str, Curve], *, scale: float = 1) -> None:
    """Draws a line per curve, with its interval where it has one."""
    for place, (name, curve) in enumerate(curves.items()):
        x, y = finite(curve.x, curve.y, scale)
        # markers stand at even spaces of a logarithmic axis, not at every one of a thousand depths
        marked = sorted({min(range(len(x)), key=lambda i: abs(math.log(x[i]) - goal)) for goal in _goals(x)})
        axes.plot(x, y, label=name, linewidth=2, markevery=marked, **line_style(place))
        if curve.low is not None and curve.high is not None:
            band = [(a, b, c) for a, b, c in zip(curve.x, curve.low, curve.high, strict=True) if b is not None and c is not None]
            low, high = [scale * b for _, b, _ in band], [scale * c for _, _, c in band]
            axes.fill_between([a for a, _, _ in band], low, high, color=COLOURS[place % len(COLOURS)], alpha=0.2, linewidth=0)


def _goals(x: Sequence[float]) -> list[float]:
    if not x:
        return []
    first, last = math.log(x[0]), math.log(x[-1])
    return [first + (last - first) * i / 8 for i in range(9)]


def finite(x: Sequence[float], y: Numbers, scale: float = 1) -> tuple[list[float], list[float]]:
    """Returns the points of a line that can be drawn."""
    kept = [(a, scale * b) for a, b in zip(x, y, strict=True) if b is not None and math.isfinite(b)]
    return [a for a, _ in kept], [b for _, b in kept]


def running_mean(y: Sequence[float]) -> list[float]:
    """Returns each value's mean over its neighbours."""
    reach = len(y) // (2 * SMOOTHED_OVER)
    windows = (y[max(0, i - reach) : i + reach + 1] for i in range(len(y)))
    return [sum(window) / len(window) for window in windows]


def depth_axis(axes: Axes, curves: Mapping[str, Curve]) -> None:
    """Makes the x axis one of depths: logarithmic, labelled at powers of two."""
    depths = sorted({int(depth) for curve in curves.values() for depth in curve.x})
    axes.set_xscale("log", base=2)
    ends = (depths[0], depths[-1]) if depths else (1, 2)
    powers = [2**i for i in range(32) if ends[0] <= 2**i <= ends[1]]
    kept = powers[:: -(-len(powers) // 9)] or [ends[0]]  # nine labels fit
    axes.set_xticks(kept, [str(depth) for depth in kept])
    axes.minorticks_off()
    axes.set_xlim(ends[0] / 1.08, max(ends[1], ends[0] + 1) * 1.08)
    axes.set_xlabel("depth (steps)")


def plain_log(axes: Axes) -> None:
    """Makes the y axis logarithmic with plain numbers beside it: matplotlib's own are in a notation that is not parsed here."""
    from matplotlib.ticker import FuncFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def log_axis(axes: Axes, curves: Mapping[str, Curve]) -> None:
    """Makes the y axis logarithmic with plain numbers beside it, where there is anything above zero to show."""
    from matplotlib.ticker import LogLocator, NullFormatter

    values = [value for curve in curves.values() for value in curve.y if value is not None and 0 < value < math.inf]
    if not values:
        return
    plain_log(axes)
    if max(values) / min(values) < FEW_DECADES:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def step_axis(axes: Axes, steps: int) -> None:
    """Makes the x axis one of steps from 1 on; of many it is logarithmic, since what happens at first is over soon."""
    axes.set_xlabel("step")
    if steps > LINEAR_STEPS:
        axes.set_xscale("log", base=2)
        kept = [4**i for i in range(16) if 4**i <= steps]
        axes.set_xticks(kept, [str(step) for step in kept])
        axes.minorticks_off()


def far_enough(points: Sequence[Sequence[float]]) -> list[int]:
    """Returns which points of a path to draw: those that lie apart from the one drawn before, and the last."""
    reach = max((max(p[i] for p in points) - min(p[i] for p in points) for i in (0, 1)), default=0.0)
    kept = [0]
    for i, point in enumerate(points):
        if math.dist(point[:2], points[kept[-1]][:2]) > reach / 400:
            kept.append(i)
    return kept if kept[-1] == len(points) - 1 else [*kept, len(points) - 1]


def mark_trained(axes: Axes, trained: tuple[int, int, int] | None) -> None:
    """Marks the depths trained at, where they are known."""
    if trained is None:
        return
    least, median, most = trained
    if least < most:
        axes.axvspan(least, most, color=INK, alpha=0.07, linewidth=0)
    axes.axvline(median, color=INK, linewidth=1, linestyle=(0, (2, 2)))
    word = f"trained: {median}" if least == most else f"trained: {least}–{most}, median {median}"
    axes.annotate(
        word, (median, 1), xycoords=("data", "axes fraction"), xytext=(0, 3), textcoords="offset points",
        fontsize=9, ha="center", va="bottom", color=INK, annotation_clip=False,
    )  # fmt: skip


def line_at_one(line: Callable[..., object]) -> None:
    """Draws the line at 1, below which a step contracts."""
    line(1, color=INK, linewidth=1, linestyle=(0, (2, 2)), zorder=0.9)


def legend(axes: Axes) -> None:
    """Writes the names of the lines below the axes."""
    longest = max(map(len, axes.get_legend_handles_labels()[1]), default=0)
    # below the axes, so that it never lies on a line
    axes.figure.legend(loc="outside lower center", frameon=False, ncols=1 if longest > LONGEST_OF_TWO else 2)


def cell(value: float) -> str:
    """Returns a percentage as short as it can be told; one just below 100 is not rounded up to it."""
    return "–" if math.isnan(value) else f"{math.floor(value * 10) / 10:.3g}" if 99 <= value < 100 else f"{value:.0f}"


def spread(count: int, most: int) -> list[int]:
    """Returns at most `most` places of `count`, evenly spread, the ends included."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})
