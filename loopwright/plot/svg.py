"""SVG text as pages take it: the drawing alone, in the colour and fonts of the text around it, with few bytes and no name that
another drawing has; and the same text as a file of its own."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from loopwright.plot.style import FONTS, INK_DRAWN, Style
from loopwright.untrusted import visible

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
