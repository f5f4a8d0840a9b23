"""Makes a page from its template: prose stands there once, numbers and verdicts are expressions over the committed rows.

A template begins with a head in YAML: `queries`, the modules that its expressions call, and `settings`, patterns of text with
digits that no row decides (sizes, rates, lengths). Any other digit in its prose is refused: a result is never typed by hand.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, StrictUndefined, nodes

from experiments.templates import words

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
SUFFIX = ".md.j2"
# blocks of code, targets, images and code spans hold no result
NOT_PROSE = r"^```.*?^```|!\[[^\]]*\]\([^)]*\)|(?<=\])\([^)]*\)|`[^`\n]*`"
# of any page: learning rates, names of seeds, depths, what intervals are
SETTINGS = (
    r"\b[1-9](\.\d)?e-[2-6]\b",
    r"\b[Ss]eeds? \d(, \d)*( and \d)?\b",
    r"\b[Dd]epths? \d+(, \d+)*( (and|to) \d+)?\b",
    r"\b95 % interval",
    r"\b(above|below|at|leaves?|hold|out) 0\b",
)
VALUE = "…{{ }}"  # stands for an expression where prose is looked through
AROUND = 20  # letters shown on each side of what is wrong


@dataclass(frozen=True)
class Template:
    """A file beside this one that makes a page."""

    path: Path

    @property
    def name(self) -> str:
        """The page as it is named in messages."""
        name = self.path.name.removesuffix(SUFFIX) + ".md"
        return name if name == "README.md" else f"docs/{name}"

    @property
    def page(self) -> Path:
        """The page that it makes."""
        return ROOT / self.name

    @cached_property
    def parts(self) -> tuple[dict[str, Any], str, int]:
        """The head, the body with an empty line for each of the head's, and how many these are."""
        _, head, body = self.path.read_text().split("---\n", 2)
        lines = head.count("\n") + 2
        return yaml.safe_load(head), "\n" * lines + body, lines

    def render(self) -> str:
        """Returns the page as the rows have it now."""
        head, body, lines = self.parts
        modules = {name.rpartition(".")[2]: import_module(name) for name in head["queries"]}
        try:
            return environment().from_string(body, modules).render()[lines:]
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            at = [f", line {frame.lineno}" for frame in frames if frame.filename == "<template>"]
            raise ValueError(f"{self.path.name}{at[-1] if at else ''}: {error}") from error

    def problems(self) -> list[str]:
        """Returns one line for each number typed by hand and for the first place where the page is not what the template makes."""
        return [f"{self.path.name}: {line}" for line in (*self.typed(), *self.constants())] + self.stale()

    def stale(self) -> list[str]:
        """Returns where the committed page first differs from what the template makes of the rows."""
        page, made = self.page.read_text(), self.render()
        if page == made:
            return []
        here, there = page.splitlines(), made.splitlines()
        for number, (old, new) in enumerate(zip_longest(here, there), 1):
            if None in (old, new):
                return [f"{self.name}: {len(here)} lines, by its template and the rows {len(there)}; make pages"]
            if old != new:
                at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
                old, new = (near(line, at, at) for line in (old, new))
                return [f"{self.name}, line {number}: {old!r} is {new!r} by its template and the rows; make pages"]
        return [f"{self.name}: ends otherwise than its template; make pages"]

    def typed(self) -> Iterator[str]:
        """Yields the numbers of the prose that are no settings, and the settings that the prose does not have."""
        head, body, _ = self.parts
        tokens = environment().lex(body)
        kinds = {"data": lambda text: text, "variable_begin": lambda _: VALUE}
        text = "".join(kinds[kind](value) for _, kind, value in tokens if kind in kinds)
        text = " ".join(re.sub(NOT_PROSE, " ", text, flags=re.MULTILINE | re.DOTALL).split())
        for setting in (*head["settings"], *SETTINGS):
            text, count = re.subn(setting, "#", text)
            if not count and setting not in SETTINGS:
                yield f"the setting {setting!r} is not in the prose; remove it"
        for number in re.finditer(r"\d[\d.,]*", text):
            where = near(text, *number.span())
            yield f"{number[0].rstrip('.,')} in {where!r} is typed by hand; make it an expression over the rows, or a setting"

    def constants(self) -> Iterator[str]:
        """Yields the numbers that expressions show without asking the rows."""
        tree = environment().parse(self.parts[1])
        shown: list[nodes.Node] = [node for output in tree.find_all(nodes.Output) for node in output.nodes]
        shown += [found.node for found in tree.find_all(nodes.Assign)]
        shown += [found.iter for found in tree.find_all(nodes.For)]
        for node in shown:
            for constant in written(node):
                if re.search(r"\d", str(constant.value)):
                    yield f"line {constant.lineno}: {constant.value} in an expression is typed by hand; ask the rows for it"


def written(node: nodes.Node) -> Iterator[nodes.Const]:
    """Yields the constants of an expression that reach the page as they are."""
    if isinstance(node, nodes.Const):
        yield node
    elif isinstance(node, nodes.Filter) and node.node is not None:
        yield from written(node.node)
    elif isinstance(node, nodes.CondExpr | nodes.List | nodes.Tuple | nodes.Concat | nodes.And | nodes.Or | nodes.Add):
        for each in node.iter_child_nodes(exclude=("test",)):
            yield from written(each)


def near(text: str, start: int, end: int) -> str:
    """Returns a piece of a text with some of what is around it."""
    first, last = max(0, start - AROUND), end + AROUND
    return f"{'…' if first else ''}{text[first:last]}{'…' if last < len(text) else ''}"


def environment() -> Environment:
    """Returns the environment of all templates: an unknown name is an error, and the words of `words.py` are filters."""
    env = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, extensions=["jinja2.ext.do"]
    )
    env.filters |= words.FILTERS
    env.globals |= {"holds": words.holds}
    return env


def templates() -> list[Template]:
    """Returns all templates."""
    return [Template(path) for path in sorted(FOLDER.glob(f"*{SUFFIX}"))]
