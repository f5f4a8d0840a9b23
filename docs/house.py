"""Draws docs/house.svg, the map of the rooms of loopwright/ and of who imports whom: `python docs/house.py`.

A room is a folder of `loopwright/`. An arrow points from a room to one that it imports, itself or through a single file beside the
rooms; arrows that follow from others are left out. It reads the source and imports nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = Path(__file__).with_name("house.svg")
WIDTH, HEIGHT, GAP = 104, 34, 26  # of a room, and the space beside it
BETWEEN, THIN = 74, 16  # from row to row, and the width that an arrow takes where it passes a row
SWEEPS = 24

Graph = dict[str, set[str]]
# a room, or a place where an arrow passes a row: its two ends and the row
Node = str | tuple[str, str, int]

HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" aria-labelledby="title text"
     font-family="system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif">
  <title id="title">The rooms of loopwright and who imports whom</title>
  <desc id="text">{text}</desc>
  <style>
    .page {{ fill: #ffffff }}
    .room {{ fill: #eef4ff; stroke: #4878cf; stroke-width: 1.4 }}
    .arrow {{ fill: none; stroke: #57606a; stroke-width: 1.3 }}
    .tip {{ fill: #57606a }}
    text {{ fill: #1f2328; font-size: 15px; text-anchor: middle }}
  </style>
  <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">
    <path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>
  <rect class="page" width="{width:g}" height="{height:g}" rx="8"/>"""


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields every statement of a file, in functions and branches too; no expression is walked, which takes most of the time."""
    for node in body:
        yield node
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):
            yield from statements(getattr(node, field, []))


def imports(root: Path) -> Graph:
    """Returns what each folder and file of the package's top level imports of the others, inside functions too."""
    found: Graph = {}
    for path in sorted(root.rglob("*.py")):
        here = path.relative_to(root).parts[0].removesuffix(".py")
        names: list[str] = []
        for node in statements(ast.parse(path.read_text()).body):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names += [f"{node.module}.{alias.name}" for alias in node.names]
        parts = [name.split(".") for name in names]
        found.setdefault(here, set()).update(x[1] for x in parts if x[0] == root.name and len(x) > 1 and x[1] != here)
    return found


def reached(graph: Graph, start: str, through: set[str]) -> set[str]:
    """Returns what can be reached from a node when only nodes of `through` are passed on the way."""
    seen: set[str] = set()
    waiting = list(graph.get(start, ()))
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += graph.get(node, ()) if node in through else ()
    return seen - {start}


def rooms(root: Path) -> Graph:
    """Returns what each room imports, without the arrows that follow from others."""
    graph = imports(root)
    folders = {path.parent.name for path in root.glob("*/__init__.py")}
    whole = {room: reached(graph, room, set(graph) - folders) & folders for room in sorted(folders)}
    further = {room: reached(whole, room, folders) for room in whole}
    return {room: {one for one in whole[room] if not any(one in further[other] for other in whole[room])} for room in whole}


def ranks(graph: Graph) -> dict[str, int]:
    """Returns the row of each room from below: one above the highest that it imports."""
    found: dict[str, int] = {}

    def rank(room: str) -> int:
        if room not in found:
            found[room] = 1 + max((rank(other) for other in graph[room]), default=-1)
        return found[room]

    for room in graph:
        rank(room)
    return found


def arranged(graph: Graph) -> tuple[list[list[Node]], list[tuple[Node, Node]]]:
    """Returns the rows from below, in an order with few crossings, and the pieces of arrows between rows next to each other."""
    rank = ranks(graph)
    rows: list[list[Node]] = [[room for room in graph if rank[room] == row] for row in range(max(rank.values()) + 1)]
    pieces: list[tuple[Node, Node]] = []
    for room, others in graph.items():
        for other in sorted(others):
            passed: list[Node] = [(room, other, row) for row in range(rank[room] - 1, rank[other], -1)]
            for node in passed:
                rows[node[2]].append(node)
            pieces += pairwise([room, *passed, other])
    above: dict[Node, list[Node]] = {node: [] for row in rows for node in row}
    below: dict[Node, list[Node]] = {node: [] for row in rows for node in row}
    for high, low in pieces:
        above[low].append(high)
        below[high].append(low)
    best = [list(row) for row in rows]
    for sweep in range(SWEEPS):  # downwards by what stands above, then upwards by what stands below
        near = below if sweep % 2 else above
        for number in range(len(rows)) if sweep % 2 else reversed(range(len(rows))):
            place = {node: (n + 0.5) / len(row) for row in rows for n, node in enumerate(row)}
            mean = {node: sum(place[x] for x in near[node]) / len(near[node]) for node in rows[number] if near[node]}
            rows[number] = sorted(rows[number], key=lambda node: mean.get(node, place[node]))
        best = min(best, [list(row) for row in rows], key=lambda rows: crossings(rows, pieces))
    return best, pieces


def crossings(rows: list[list[Node]], pieces: list[tuple[Node, Node]]) -> int:
    """Returns how many pieces of arrows cross."""
    place = {node: (number, x) for number, row in enumerate(rows) for x, node in enumerate(row)}
    ends = [(place[high], place[low][1]) for high, low in pieces]
    return sum(a[0] == b[0] and (a[1] - b[1]) * (c - d) < 0 for n, (a, c) in enumerate(ends) for b, d in ends[:n])


def spots(rows: list[list[Node]], pieces: list[tuple[Node, Node]]) -> dict[Node, float]:
    """Returns the middle of each node from the left: as near to those it is tied to as its neighbours allow."""
    wide = {node: WIDTH if isinstance(node, str) else THIN for row in rows for node in row}
    x: dict[Node, float] = {}
    for row in rows:
        start = -sum(wide[node] + GAP for node in row) / 2
        for node in row:
            x[node], start = start + (wide[node] + GAP) / 2, start + wide[node] + GAP
    ties: dict[Node, list[Node]] = {node: [] for node in x}
    for high, low in pieces:
        ties[high].append(low)
        ties[low].append(high)
    for _ in range(SWEEPS):
        for row in rows:
            for n, node in enumerate(row):
                wanted = sum(x[other] for other in ties[node]) / len(ties[node]) if ties[node] else x[node]
                room = [(wide[node] + wide[other]) / 2 + GAP for other in (row[n - 1 : n] + row[n + 1 : n + 2])]
                least = x[row[n - 1]] + room[0] if n else -1e9
                most = x[row[n + 1]] - room[-1] if n + 1 < len(row) else 1e9
                x[node] = max(least, min(most, wanted))
    left = min(x[node] - wide[node] / 2 for node in x) - GAP
    return {node: round(x[node] - left) for node in x}


def drawing(root: Path = ROOT / "loopwright") -> str:
    """Returns the map as SVG."""
    graph = rooms(root)
    rows, pieces = arranged(graph)
    x = spots(rows, pieces)
    y = {node: GAP + HEIGHT / 2 + (len(rows) - 1 - number) * BETWEEN for number, row in enumerate(rows) for node in row}
    text = " ".join(f"{room} imports {', '.join(sorted(others))}." for room, others in graph.items() if others)
    width, height = max(x.values()) + WIDTH / 2 + GAP, max(y.values()) + HEIGHT / 2 + GAP
    lines = [HEAD.format(width=width, height=height, text=text)]
    for room, others in graph.items():
        for other in sorted(others):
            passed = [node for row in reversed(rows) for node in row if node[:2] == (room, other)]
            path = f"M{x[room]:g} {y[room] + HEIGHT / 2:g}"
            for start, end in pairwise([room, *passed, other]):
                top, bottom = y[start] + HEIGHT / 2, y[end] - HEIGHT / 2 - (1 if end == other else 0)
                path += f"C{x[start]:g} {top + 18:g} {x[end]:g} {bottom - 18:g} {x[end]:g} {bottom:g}"
                path += f"V{y[end] + HEIGHT / 2:g}" if end != other else ""
            lines.append(f'  <path class="arrow" marker-end="url(#tip)" d="{path}"/>')
    for room in graph:
        box = f'x="{x[room] - WIDTH / 2:g}" y="{y[room] - HEIGHT / 2:g}" width="{WIDTH}" height="{HEIGHT}"'
        lines += [f'  <rect class="room" {box} rx="7"/>', f'  <text x="{x[room]:g}" y="{y[room] + 5:g}">{room}</text>']
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(drawing())
