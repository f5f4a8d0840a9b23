"""How figures are drawn: colour-blind safe, readable at phone width, the same bytes each time.

As text a figure takes the colour of the page around it (`currentColor`); `Drawing.save` writes it in a style and size of its own.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwright.plot.style import COLOURS, HEIGHT, INK, LATE, PAGE, SIZES, STYLES, WIDTH, Size, Style, drawn_in, file_svg, page_svg
from loopwright.schema import check_choice
from loopwright.storage.files import write_whole

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple[Any, ...] = (
    "-", (0, (5, 1.5)), (0, (2, 1.2)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 1)),
)  # fmt: skip
LONGEST_OF_TWO = 24  # letters of a name where two names stand side by side under a figure
LETTERS = 56  # of names, with what stands beside them, in one line under panels
MOST_LABELLED_CELLS = 100
LAST_NAMED = ("even steps", "odd steps")  # in a legend, after the lines they are of
SHADES = 20
CELLS = 800  # pixels of a matrix's longer side, or a few less
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


class Drawing(str):
    """A figure: SVG text in the colours of the page around it, which notebooks draw; `save` writes it in a style of its own."""

    _make: Callable[[Size, Style], Any]

    @classmethod
    def of(cls, make: Callable[[Size, Style], Any]) -> Drawing:
        """Returns the drawing of a function from size and style to a matplotlib figure."""
        drawing = cls(page_svg(_svg(figure := _named(make(SIZES["page"], PAGE))), _frames(figure)))
        drawing._make = make
        return drawing

    def save(self, path: str | Path, *, style: str = "light", size: str = "page") -> Path:
        """Writes the figure as SVG or PNG, by the ending of `path`, and returns where.

        Args:
            style: "light" or "dark".
            size: "page" as on pages, "column" for a paper's column, "slide" for a slide of 16 : 9.
        """
        path = Path(path)
        look = STYLES[check_choice("plot", "style", style, STYLES)]
        fit = SIZES[check_choice("plot", "size", size, SIZES)]
        if path.suffix.lower() not in (".svg", ".png"):
            raise ValueError(f"plot: {path.name} must end in .svg or .png (got {path.suffix or 'no ending'!r})")
        path.parent.mkdir(parents=True, exist_ok=True)
        vector = path.suffix.lower() == ".svg"
        if vector and size == "page":
            write_whole(path, file_svg(self, look, 1.0))
            return path
        figure = self._make(fit, PAGE if vector else look)
        scale = fit.scale(*figure.get_size_inches())
        if vector:
            write_whole(path, file_svg(page_svg(_svg(figure)), look, scale))
            return path
        buffer = io.BytesIO()
        with drawn_in(look):
            figure.savefig(
                buffer, format="png", dpi=scale * fit.dpi, facecolor=look.background, metadata={"Software": None},
                pil_kwargs={"dpi": (fit.dpi, fit.dpi)},
            )  # fmt: skip
        write_whole(path, buffer.getvalue())
        return path

    def kept(self, path: str | Path | None, style: str, size: str) -> Drawing:
        """Returns the figure itself, saved where a path is given."""
        if path is not None:
            self.save(path, style=style, size=size)
        return self

    def _repr_svg_(self) -> str:
        return str(self)


class Plotted:
    """A result that has a figure."""

    def drawing(self) -> Drawing:
        """Returns the figure of the result."""
        raise NotImplementedError

    def plot(self, path: str | Path | None = None, *, style: str = "light", size: str = "page") -> Drawing:
        """Returns the figure of the result, which a notebook shows, and writes it where a path is given (see `Drawing.save`)."""
        return self.drawing().kept(path, style, size)


def figure(draw: Callable[[Axes], None], *, width: float = WIDTH, height: float = HEIGHT) -> Drawing:
    """Returns what `draw` draws on one pair of axes."""

    def make(size: Size, style: Style) -> Any:
        from matplotlib.figure import Figure

        with drawn_in(style):
            made = Figure(figsize=(width, height), layout="constrained")
            draw(made.subplots())
            return made

    return Drawing.of(make)


def panels(
    draws: Sequence[Callable[[Axes], None]], *, columns: int = 2, height: float = 2.9, legend_columns: int | None = None
) -> Drawing:
    """Returns several pairs of axes side by side, each drawn by its own function, with one legend below (in as many columns as
    short names fill, unless it is said). A column has fewer panels side by side than a page, a slide more."""
    wide = WIDTH / (1 if min(columns, len(draws)) == 1 else 2)

    def make(size: Size, style: Style) -> Any:
        from matplotlib.figure import Figure

        across = size.across(len(draws), columns, wide, height)
        rows = -(-len(draws) // across)
        with drawn_in(style):
            made = Figure(figsize=(wide * across, height * rows), layout="constrained")
            _fill(made, draws, rows, across, legend_columns)
            return made

    return Drawing.of(make)


def _fill(made: Any, draws: Sequence[Callable[[Axes], None]], rows: int, columns: int, legend_columns: int | None) -> None:
    """Draws the panels into a figure; where the last row is not full, its panels stand in the middle."""
    empty = rows * columns - len(draws)
    spec = made.add_gridspec(rows, 2 * columns)
    labelled: dict[str, Any] = {}
    for place, draw in enumerate(draws):
        row, column = divmod(place, columns)
        left = 2 * column + (empty if row == rows - 1 else 0)
        axes = made.add_subplot(spec[row, left : left + 2])
        draw(axes)
        labelled |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    labelled |= {word: labelled.pop(word) for word in LAST_NAMED if word in labelled}
    if labelled:
        across = int(LETTERS * made.get_figwidth() / WIDTH) // (max(map(len, labelled)) + 5)  # beside each name stands its line
        ncols = legend_columns or max(1, min(len(labelled), across))
        made.legend(labelled.values(), labelled.keys(), loc="outside lower center", frameon=False, ncols=ncols)


def _named(figure: Any) -> Any:
    """Returns a figure whose lines are called by their names and axes in the SVG, for a page to read them out."""
    for place, axes in enumerate(figure.axes):
        for line in axes.lines:
            name = line.get_gid() or line.get_label()
            seen = line.get_linestyle() not in ("None", "none", " ", "") and len(line.get_xdata()) > 1
            line.set_gid(f"line:{place}:{name}" if seen and not name.startswith("_") else None)
    return figure


def _frames(figure: Any) -> list[list[Any]]:
    """Returns where each pair of axes lies in the drawing, left, top, right, bottom; for x and y their scale, ends and name; and
    whether every x is a whole number."""
    width, height = (72 * side for side in figure.get_size_inches())
    frames = []
    for axes in figure.axes:
        box = axes.get_position()
        sides = [[s.get_scale(), *map(float, ends), s.get_label_text()]
                 for s, ends in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim()))]  # fmt: skip
        whole = all(float(x).is_integer() for line in axes.lines if line.get_gid() for x in line.get_xdata())
        frames.append([
            [round(v, 2) for v in (width * box.x0, height * (1 - box.y1), width * box.x1, height * (1 - box.y0))], *sides, whole,
        ])  # fmt: skip
    return frames


def _svg(made: Any) -> str:
    """Returns a figure as transparent SVG. `savefig` writes the same bytes but draws twice, once for the layout alone."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.StringIO()
    with drawn_in(PAGE):
        for drawn in (made, *(axes.patch for axes in made.axes)):
            drawn.set(facecolor="none", edgecolor="none")
        FigureCanvasSVG(made).print_svg(buffer)
    return buffer.getvalue()


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


def whole_ticks(axis: Any) -> None:
    """Labels a linear axis of layers or steps at whole numbers alone, were there only one."""
    axis.get_major_locator().set_params(integer=True, min_n_ticks=1)


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
