"""One look for every figure: colours that show on light and dark pages, sizes for pages, papers and slides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

INK = "C0"  # the colour of text and axes: matplotlib asks the style for it when something is drawn
INK_DRAWN = "#1b1f24"  # as drawn for a page, then replaced by the colour of the page's text
# Okabe and Ito's palette without yellow, the colour of text last; each line also has its own marker and dash
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", INK)
# the ends of what goes on in steps, and of what differs by layer: 3 : 1 and more against white and against a dark page
EARLY, LATE = "#0072B2", "#D55E00"
FIRST_LAYER, LAST_LAYER = "#8250C8", "#2B9A5B"
WIDTH, HEIGHT = 5.2, 3.5  # inches of a figure on a page
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


@dataclass(frozen=True)
class Style:
    """The colours around what is drawn."""

    ink: str
    background: str


@dataclass(frozen=True)
class Size:
    """How large a figure is at most, in inches (None: as it was drawn), how fine a PNG is, and how many panels stand side by
    side at most (None: as many as fill the height best)."""

    width: float | None
    height: float | None
    dpi: int
    columns: int | None

    def across(self, count: int, columns: int, width: float, height: float) -> int:
        """Returns how many of so many panels of a width and height stand side by side."""
        if self.columns is not None or self.width is None or self.height is None:
            return min(count, columns, self.columns or columns)
        return max(range(1, count + 1), key=lambda n: self.scale(width * n, height * -(-count // n)))

    def scale(self, width: float, height: float) -> float:
        """Returns by how much a drawing of so many inches is made larger."""
        return 1.0 if self.width is None or self.height is None else min(self.width / width, self.height / height)


STYLES = {"light": Style(INK_DRAWN, "#ffffff"), "dark": Style("#e6e4df", "#14171a")}
PAGE = STYLES["light"]  # drawn with, before its ink becomes that of the page
SIZES = {
    "page": Size(None, None, 200, None),
    "column": Size(3.4, 9.0, 600, 2),
    "slide": Size(12.0, 6.4, 160, None),
}


@contextmanager
def drawn_in(style: Style) -> Iterator[None]:
    """Sets matplotlib to a style; the reader's own settings are put back after, and change no byte."""
    from matplotlib import rc_context, rcdefaults
    from matplotlib.rcsetup import cycler

    with rc_context():
        rcdefaults()
        with rc_context({
            "axes.prop_cycle": cycler(color=[style.ink]), "figure.facecolor": style.background, "axes.facecolor": "none",
            "svg.fonttype": "none", "svg.hashsalt": "loopwright", "text.parse_math": False,
            "font.family": "DejaVu Sans", "font.size": 10.5, "axes.titlesize": 11, "axes.titleweight": "bold",
            "axes.labelsize": 10.5, "legend.fontsize": 10,
            "text.color": style.ink, "axes.labelcolor": style.ink, "axes.edgecolor": style.ink,
            "xtick.color": style.ink, "ytick.color": style.ink,
            "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.8, "axes.grid": True, "axes.grid.axis": "y",
            "grid.color": style.ink, "grid.alpha": 0.15, "grid.linewidth": 0.6, "axes.axisbelow": True,
        }):  # fmt: skip
            yield
