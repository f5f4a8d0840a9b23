"""Writes the API page from the docstrings of the public names. It reads the source and imports nothing, so that the site builds
without torch.

python docs/api.py > api.md
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAD = """# API

The public names of `import loopwright as lw`, from their docstrings. [python.md](python.md) shows them at work;
[analysis.md](analysis.md) lists the functions of `lw.metrics`.
"""

Definition = ast.FunctionDef | ast.ClassDef


def public_names() -> dict[str, str]:
    """Returns the module that each public name is imported from, in `loopwright/public.py`."""
    tree = ast.parse((ROOT / "loopwright" / "public.py").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module != "__future__"]
    return {name.asname or name.name: str(node.module) for node in imports for name in node.names}


def definition(name: str, module: str) -> Definition:
    """Returns the class or function that a module defines by this name."""
    path = ROOT / (module.replace(".", "/") + ".py")
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, Definition) and node.name == name:
            return node
    raise ValueError(f"{path.relative_to(ROOT)} does not define {name}; import it in public.py from where it is defined")


def signature(node: ast.FunctionDef, name: str) -> str:
    """Returns a call with its arguments, without `self`, one a line where it is long."""
    arguments = ast.unparse(node.args).removeprefix("self").removeprefix(", ")
    line = f"{name}({arguments})" + (f" -> {ast.unparse(node.returns)}" if node.returns else "")
    if len(line) <= 100:
        return line
    parts = [ast.unparse(each) for each in node.args.args if each.arg != "self"]
    first = len(parts) - len(node.args.defaults)
    parts = [f"{part} = {ast.unparse(node.args.defaults[i - first])}" if i >= first else part for i, part in enumerate(parts)]
    parts += [f"*{ast.unparse(node.args.vararg)}"] if node.args.vararg else ["*"] * bool(node.args.kwonlyargs)
    for each, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        parts.append(ast.unparse(each) + (f" = {ast.unparse(default)}" if default else ""))
    parts += [f"**{ast.unparse(node.args.kwarg)}"] if node.args.kwarg else []
    end = f") -> {ast.unparse(node.returns)}" if node.returns else ")"
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), end])


def entry(name: str, node: Definition) -> Iterator[str]:
    """Yields the Markdown of one name: its signature, its docstring and, of a class, its fields and public methods."""
    yield f"### lw.{name}"
    if isinstance(node, ast.FunctionDef):
        yield f"```python\n{signature(node, f'lw.{name}')}\n```"
        yield prose(node)
        return
    yield prose(node)
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    if fields:
        yield "```python\n" + "\n".join(map(ast.unparse, fields)) + "\n```"
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_") and ast.get_docstring(method):
            shown = f"`.{method.name}`" if is_property(method) else f"`.{signature(method, method.name)}`".replace("\n", " ")
            yield f"- {shown}: " + textwrap.indent(prose(method), "    ").strip()


def is_property(method: ast.FunctionDef) -> bool:
    """Whether a method is read without a call."""
    return any(isinstance(each, ast.Name) and each.id in ("property", "cached_property") for each in method.decorator_list)


def prose(node: Definition) -> str:
    """Returns a docstring, its `Args:` as a list."""
    text, _, arguments = (ast.get_docstring(node) or "").partition("\nArgs:\n")
    items = re.sub(r"^ {4}(\w[\w, ]*): ", r"- `\1`: ", arguments, flags=re.MULTILINE)
    return f"{text.strip()}\n\n{items}".strip()


def page() -> str:
    """Returns the whole page: functions first, then classes, each in alphabetical order."""
    nodes = {name: definition(name, module) for name, module in sorted(public_names().items())}
    parts = [HEAD]
    for title, kind in (("Functions", ast.FunctionDef), ("Classes", ast.ClassDef)):
        parts.append(f"## {title}")
        parts += [part for name, node in nodes.items() if isinstance(node, kind) for part in entry(name, node)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(page(), end="")
