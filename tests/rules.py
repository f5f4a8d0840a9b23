"""The rules of the code base: functions of a root folder that return complaints. test_architecture.py runs them."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

FOLDERS = ("loopwright", "tests", "benchmarks")
LINES_OF_A_FILE = 700
LINES_OF_A_FUNCTION = 80
LONGER = {"train": 120}
MODULES_OF_A_FOLDER = 26  # below the root, whose modules have a row each in ROWS
BYTES_OF_RESULTS = 10_000_000

# an import may point to an earlier row only, or stay inside its own package
ROWS = [
    {"autoregister", "kernels", "moved", "untrusted", "version"},
    {"confined", "errors", "process", "schema", "storage"},
    {"metrics", "model", "plot", "registry"},
    {"data", "generation", "vllm"},
    {"analysis", "checking", "checkpoints"},
    {"evaluation", "retrofitting", "serving"},
    {"training"},
    {"parts", "recipes"},
    {"measuring"},
    {"api"},
    {"commands", "public"},
    {"cli"},
    {"__main__"},
]
RANK = {name: rank for rank, row in enumerate(ROWS) for name in row}

# packages that a plain `import loopwright` must not need, and the one place that may import each, when used ("" = nowhere)
HOMES: dict[str, str | tuple[str, ...]] = {
    "matplotlib": "plot/",
    "lm_eval": "evaluation/harness.py",
    "datasets": ("data/text.py", "training/trl_trainer.py"),
    "llguidance": "generation/constraints.py",
    "trl": "training/trl_trainer.py",
    "peft": "retrofitting/",
    "starlette": "serving/",
    "uvicorn": "serving/",
    "prometheus_client": "serving/",
    "vllm": "vllm/",
    "gguf": "",
    "pydantic": "",
}

# rooms that nothing but their own verb or vLLM enters, when it is called: there the packages may stand at the head of a file
OWN_ROOMS = ("serving/", "vllm/", "training/trl_trainer.py")

NOT_WORDS = {
    "iteration",
    "iterations",
    "recurrence",
    "recurrences",
    "recurrent",
    "recursion",
    "latent",
    "latents",
    "embeds",
    "hidden",
}
NOT_NAMES = {"num_steps", "n_steps", "ut_steps", "num_iter", "n_iter", "num_loops", "n_loops", "loop_count"}
# names that transformers dictates
DICTATED = {"hidden_size", "num_hidden_layers", "inputs_embeds", "output_hidden_states", "last_hidden_state", "hidden_states"}
# words of others in our prose: titles, and English that means something else
QUOTED = {
    "Retrofitted recurrence": "the title of arXiv 2511.07384",
    "no hidden state": "what nobody can see, not the model's state",
}
NOT_MODULES = {"utils", "util", "common", "helpers", "helper", "misc", "manager", "base", "v2", "new", "legacy", "minimal"}
# asked of a model by transformers and documented there
OVERRIDES = {"forward", "get_input_embeddings", "set_input_embeddings", "get_output_embeddings", "set_output_embeddings"}
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|home|root|Users|mnt|scratch)/\w")

# read by transformers, not by us
READ_ELSEWHERE = {"tie_word_embeddings", "pad_token_id", "bos_token_id", "eos_token_id"}

Rule = Callable[[Path], list[str]]


def sources(root: Path, *folders: str) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders or ("loopwright",):
        for path in sorted((root / folder).rglob("*.py")):
            yield path.relative_to(root).as_posix(), parsed(path.read_text())


@cache
def parsed(text: str) -> ast.Module:
    """Each file is parsed once for all rules, none of which changes a tree."""
    return ast.parse(text)


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """A tree is walked once for all rules."""
    return tuple(ast.walk(tree))


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields (line, dotted name) of each import below a node; `from a import b` counts as a.b."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{'.' * node.level}{node.module or ''}.{alias.name}") for alias in node.names)


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    yield from (node for node in nodes(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def imports_point_down(root: Path) -> list[str]:
    found = []
    for path, tree in sources(root):
        here = path.split("/")[1].removesuffix(".py")
        if here == "__init__":  # the public table of contents
            continue
        if here not in RANK:
            found.append(f"{path}: {here} has no row in the layout")
            continue
        for line, name in imported(tree):
            parts = name.split(".")
            if name.startswith("."):
                found.append(f"{path}:{line}: relative import {name}")
            elif parts[0] == "loopwright":
                there = parts[1] if len(parts) > 1 else "__init__"
                if there != here and RANK.get(there, len(ROWS)) >= RANK[here]:
                    found.append(f"{path}:{line}: {here} imports {name}")
    return found


def optional_packages_stay_home(root: Path) -> list[str]:
    found = []
    for path, tree in sources(root):
        lazy = {line for function in functions(tree) for line, _ in imported(function)}
        for line, name in imported(tree):
            package = name.split(".")[0]
            if package not in HOMES:
                continue
            room = next((room for room in OWN_ROOMS if path.startswith(f"loopwright/{room}")), None)
            homes = HOMES[package] if isinstance(HOMES[package], tuple) else (HOMES[package],)
            if line not in lazy and not (room and room in homes):
                found.append(f"{path}:{line}: {package} is imported with the module; import it where it is used")
            elif not any(home and path.startswith(f"loopwright/{home}") for home in homes):
                found.append(f"{path}:{line}: {package} belongs in {' or '.join(homes) or 'no file'}")
    return found


def files_are_short(root: Path) -> list[str]:
    lengths = {p.relative_to(root): len(p.read_text().splitlines()) for f in FOLDERS for p in (root / f).rglob("*.py")}
    return [f"{path}: {n} lines; allowed: {LINES_OF_A_FILE}" for path, n in lengths.items() if n > LINES_OF_A_FILE]


def functions_are_short(root: Path) -> list[str]:
    found = []
    for path, tree in sources(root, *FOLDERS):
        for node in functions(tree):
            length, allowed = (node.end_lineno or 0) - node.lineno + 1, LONGER.get(node.name, LINES_OF_A_FUNCTION)
            if length > allowed:
                found.append(f"{path}:{node.lineno}: {node.name} has {length} lines; allowed: {allowed}")
    return found


def folders_are_small(root: Path) -> list[str]:
    modules = Counter(path.parent for path in (root / "loopwright").rglob("*/*.py") if path.name != "__init__.py")
    counts = {folder.relative_to(root).as_posix(): n for folder, n in sorted(modules.items())}
    allowed = MODULES_OF_A_FOLDER
    return [f"{name}: {n} modules; allowed: {allowed}" for name, n in counts.items() if n > allowed]


def every_room_has_its_tests(root: Path) -> list[str]:
    """Tests mirror the packages; a module at the root has a file of its own."""
    found = []
    for path in sorted((root / "loopwright").rglob("*.py")):
        place = path.relative_to(root / "loopwright")
        if place.name in ("__init__.py", "__main__.py"):
            continue
        here = root / "tests" / place.parent
        if not any(here.glob("test_*.py" if place.parent.name else f"test_{place.name}")):
            found.append(f"loopwright/{place.as_posix()}: no tests in tests/{place.parent.as_posix()}")
    return found


def public_names_have_docstrings(root: Path) -> list[str]:
    trees = dict(sources(root))
    classes: dict[str, list[ast.ClassDef]] = {}
    for node in (node for tree in trees.values() for node in nodes(tree) if isinstance(node, ast.ClassDef)):
        classes.setdefault(node.name, []).append(node)

    def inherited(owner: ast.ClassDef, name: str) -> bool:
        bases = [base for b in owner.bases if isinstance(b, ast.Name) for base in classes.get(b.id, [])]
        return any(
            any(f.name == name and ast.get_docstring(f) for f in base.body if isinstance(f, ast.FunctionDef))
            or inherited(base, name)
            for base in bases
        )

    def missing(node: ast.Module | ast.ClassDef, path: str) -> Iterator[str]:
        for child in node.body:
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or child.name.startswith("_"):
                continue
            excused = isinstance(node, ast.ClassDef) and (child.name in OVERRIDES or inherited(node, child.name))
            if not ast.get_docstring(child) and not excused:
                yield f"{path}:{child.lineno}: {child.name} has no docstring"
            if isinstance(child, ast.ClassDef):
                yield from missing(child, path)

    found = [f"{path}: no docstring" for path, tree in trees.items() if not ast.get_docstring(tree)]
    return found + [complaint for path, tree in trees.items() for complaint in missing(tree, path)]


def class_names_are_unique(root: Path) -> list[str]:
    """A class name stands for one thing in the whole package."""
    places: dict[str, list[str]] = {}
    for path, tree in sources(root):
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path)
    return [f"{name} is a class of {' and of '.join(paths)}" for name, paths in sorted(places.items()) if len(paths) > 1]


def defined_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def glossary_words(root: Path) -> list[str]:
    found = []
    for path, tree in sources(root):
        for line, name in defined_names(tree):
            words = {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)}
            if name not in DICTATED and (words & NOT_WORDS or name.lower() in NOT_NAMES):
                found.append(f"{path}:{line}: the name {name}")
        for node in nodes(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                for phrase in QUOTED:
                    text = text.replace(phrase, "")
                wrong = sorted({w.lower() for w in re.findall(r"\w+", text)} & (NOT_WORDS | NOT_NAMES))
                found += [f"{path}: the word {word} in the docstring of {getattr(node, 'name', 'the module')}" for word in wrong]
    return found


def module_names(root: Path) -> list[str]:
    places = [path.relative_to(root) for path in (root / "loopwright").rglob("*.py")]
    parts = {(place.as_posix(), part.removesuffix(".py")) for place in places for part in place.parts}
    return sorted(f"{place}: {part} says nothing" for place, part in parts if part in NOT_MODULES)


def one_loop(root: Path) -> list[str]:
    """The step of a model takes a state, an input, its index and the pass; an optimiser's step takes nothing."""
    found = []
    for path, tree in sources(root):
        owners = {id(inner): node.name for node in functions(tree) for inner in ast.walk(node)}
        for loop in nodes(tree):
            if not isinstance(loop, ast.For | ast.While | ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp):
                continue
            for node in ast.walk(loop):
                func = node.func if isinstance(node, ast.Call) else None
                name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
                if name == "step" and len(node.args) + len(node.keywords) >= 3:
                    found.append(f"{path}: {owners.get(id(loop), 'the module')}")
    return [] if found == ["loopwright/model/backbone.py: unroll"] else found or ["no loop over steps anywhere"]


def no_hasattr(root: Path) -> list[str]:
    return [
        f"{path}:{node.lineno}: hasattr"
        for path, tree in sources(root)
        for node in nodes(tree)
        if isinstance(node, ast.Name) and node.id == "hasattr"
    ]


def no_machine_in_files(root: Path) -> list[str]:
    """Files that are, or would be, in the repository name no folder of one machine."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=root, capture_output=True, text=True, check=False
    )
    names = listed.stdout.splitlines() if listed.returncode == 0 and (root / ".git").exists() else []
    paths = [root / name for name in names] or [p for p in root.rglob("*") if not set(p.parts) & {".venv", "__pycache__"}]
    found = []
    for path in paths:
        try:
            lines = path.read_text().splitlines() if path.is_file() else []
        except UnicodeDecodeError:
            continue
        hits = [(number, MACHINE_PATH.search(line)) for number, line in enumerate(lines, start=1)]
        found += [f"{path.relative_to(root)}:{number}: {hit.group()}" for number, hit in hits if hit]
    return found


def results_are_small(root: Path) -> list[str]:
    """What the studies keep comes with every clone: rows are rounded and hold no more than pages, tables and figures read."""
    size = sum(path.stat().st_size for path in (root / "experiments" / "results").rglob("*") if path.is_file())
    return [f"experiments/results: {size:,} bytes; allowed: {BYTES_OF_RESULTS:,}"] if size > BYTES_OF_RESULTS else []


def unread_fields(root: Path, fields: list[str]) -> list[str]:
    """Returns the fields that nothing reads from a config, the checks of the config itself apart."""
    checks = {"__post_init__", "_malformed", "_problems", "_part_problems"}
    read: set[str] = set()
    for path, tree in sources(root):
        skipped = {id(n) for f in functions(tree) if f.name in checks and path.endswith("config.py") for n in ast.walk(f)}
        for node in nodes(tree):
            if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load) or id(node) in skipped:
                continue
            owner = node.value
            name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
            if "config" in name or (name == "self" and path.endswith("model/config.py")):
                read.add(node.attr)
    return [name for name in fields if name not in read | READ_ELSEWHERE]


def unnamed_entries(root: Path, entries: dict[str, set[str]]) -> list[str]:
    """Returns the table entries that no test, benchmark or experiment names."""
    folders = ("tests", "benchmarks", "experiments")
    named = {
        node.value
        for path, tree in sources(root, *folders)
        if path not in ("tests/test_architecture.py", "tests/rules.py")
        for node in nodes(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    named |= {name.removesuffix("-tiny") for name in named}
    return [f"{table}: {name}" for table, names in entries.items() for name in sorted(names) if name not in named]


RULES: list[Rule] = [
    imports_point_down, optional_packages_stay_home, files_are_short, functions_are_short, folders_are_small,
    every_room_has_its_tests, public_names_have_docstrings, class_names_are_unique, glossary_words, module_names, one_loop,
    no_hasattr, no_machine_in_files, results_are_small,
]  # fmt: skip
