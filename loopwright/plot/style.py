"""One look for every figure: colours that show on light and dark pages, sizes for pages, papers and slides.

SVG text as pages take it: the drawing alone, in the colour and fonts of the text around it, with few bytes and no name that
another drawing has; and the same text as a file of its own.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any

from loopwright.untrusted import visible

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


SEEN = 0.05  # points: a line that leaves out less than this looks the same
LONGEST_RUN = 64  # points that one piece of line stands for, at most


def page_svg(text: str, frames: Sequence[Any] = ()) -> str:
    """Returns the drawing alone: no prolog, no date or other metadata, the page's fonts and text colour, and names for what it
    refers to that no other drawing on the page has. `frames` say where its axes lie: a page reads lines out there."""
    text = visible(text[text.index("<svg") :])  # control characters are no XML
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"\s*<defs>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)  # it would style the whole page
    text = text.replace("<svg ", "<svg style=\"stroke-linejoin: round; font-family: 'DejaVu Sans'\" ", 1)
    text = text.replace("font-family: 'DejaVu Sans'; ", "")  # all text inherits it
    text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
    text = re.sub(r" id='(line:[^']*)'", lambda match: f' id="{match[1].replace(chr(34), "&quot;")}"', text)
    text = text.replace(' id="line:', ' data-line="')
    used, own = {name for _, name in re.findall(_REFERENCE, text)}, f"f{hashlib.sha256(text.encode()).hexdigest()[:6]}"
    text = re.sub(r' id="([^"]+)"', lambda match: f' id="{own}-{match[1]}"' if match[1] in used else "", text)
    text = re.sub(_REFERENCE, lambda match: f"{match[1]}{own}-{match[2]}", text)
    text = re.sub(r' d="([^"]+)"', lambda match: f' d="{_straight(match[1])}"', text)
    text = re.sub(r' (?:d|x|y)="[^"]+"', lambda match: re.sub(r"-?\d+\.\d{3,}", _short, match[0]), text)
    text = re.sub(_BITMAP, lambda match: match[1] + _palette(match[2]), text)
    text = re.sub(r"image-rendering:[^;\"]+;?", "", text)  # matplotlib asks for hard pixels, which are uneven when made smaller
    text = re.sub(r'\s*<path d="[^"]*" style="fill: none"/>', "", text)  # backgrounds that are not painted
    text = re.sub(r' style="[^"]*"', lambda match: re.sub(r"([:;]) ", r"\1", match[0]), text)
    text = text.replace("'DejaVu Sans'", FONTS).replace(INK_DRAWN, "currentColor")
    if len(frames) == 1:  # small enough for a phone as a whole
        text = text.replace("<svg ", '<svg data-panels="1" ', 1)
    if frames and "data-line" in text:
        text = text.replace("<svg ", f'<svg data-axes="{escape(json.dumps(frames, separators=(",", ":")))}" ', 1)
    return re.sub(r"\s*\n\s*", "\n", _ungrouped(text))


def file_svg(text: str, style: Style, scale: float) -> str:
    """Returns a page's drawing as a file of its own: the style's background and text colour, and the size times `scale`."""
    bare = _ungrouped(re.sub(r' data-(?:line|axes|panels)="[^"]*"', "", text))
    head, rest = re.split(r"(?<=>)", re.sub(r"\n+", "\n", bare), maxsplit=1)
    width, height = (float(re.search(rf' {side}="([\d.]+)pt"', head)[1]) for side in ("width", "height"))  # type: ignore[index]
    for side, length in (("width", width), ("height", height)):
        head = re.sub(rf' {side}="[\d.]+pt"', f' {side}="{scale * length:.2f}pt"', head)
    ground = f'\n<rect width="{width:g}" height="{height:g}" fill="{style.background}"/>'
    return head + ground + rest.replace("currentColor", style.ink)


def _ungrouped(text: str) -> str:
    """Returns a drawing without the groups that say nothing of what is in them: matplotlib puts one around every piece."""
    said: list[bool] = []

    def kept(match: re.Match[str]) -> str:
        if match[0].startswith("</"):
            return match[0] if said.pop() else ""
        if match[0].endswith("/>"):
            return match[0]
        said.append("=" in match[0])
        return match[0] if said[-1] else ""

    return re.sub(rf"<g\b{_ATTRIBUTES}>|</g\s*>", kept, text)


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
    image = Image.fromarray(np.searchsorted(found, packed).astype(np.uint8), "P")
    image.putpalette(colours[:, :3].tobytes())
    buffer = io.BytesIO()
    image.save(buffer, format="png", optimize=True, transparency=colours[:, 3].tobytes())
    return base64.b64encode(buffer.getvalue()).decode()


def _straight(outline: str) -> str:
    """Returns the lines of an outline without the points that nobody would miss; an outline with curves as it is."""
    pieces = re.findall(r"M ([^Mz]+)(z?)", outline)
    if "C" in outline or "Q" in outline or not pieces:
        return outline
    made = []
    for body, end in pieces:
        points = [complex(*map(float, pair.split())) for pair in body.split("L")]
        kept = " ".join(f"{point.real:.6f} {point.imag:.6f}" for point in _needed(points))  # after M, points are lines to them
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


_ATTRIBUTES = r"""(?:"[^"]*"|'[^']*'|[^"'>])*"""
_BITMAP = r'(xlink:href="data:image/png;base64,\s*)([^"]+)'
_REFERENCE = r"""(href="#|url\(#)([\w.]+)"""
