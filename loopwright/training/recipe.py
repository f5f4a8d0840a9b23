"""A recipe: the whole run as strict plain data, in YAML. Every name is checked, with a suggestion, before anything is built."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from loopwright.data.build import DATA
from loopwright.metrics.score import METRICS
from loopwright.registry import import_file, missing_files
from loopwright.schema import (
    check_kind,
    differences,
    fill_section,
    is_whole,
    merge,
    parse_overrides,
    read_yaml,
    suggest,
    write_yaml,
)
from loopwright.storage.run import RunFolder
from loopwright.training.depth import RULES
from loopwright.training.gradient import REMATS
from loopwright.training.model import MODELS
from loopwright.training.objectives.losses import OBJECTIVES
from loopwright.training.objectives.penalties import PENALTIES, Weighted
from loopwright.training.optim import AVERAGES, OPTIMISERS, SCHEDULES
from loopwright.training.tracking import TRACKERS
from loopwright.untrusted import read_text, shown

RECIPE_BYTES = 2**17  # of a recipe's file
PRECISIONS = ("fp32", "tf32", "bf16")
# what may differ between a run and its resumption: none of it changes an update, or (compile, graph) but for how sums are rounded
FREE = ("about", "toy", "save", "track", "imported", "compile", "graph")

# What is beyond the upper bounds is no run: it would not end, or its seeds of each update would not fit 64 bits.
RANGES = {
    "updates": (1, 10**12), "batch": (1, 10**7), "accumulate": (1, 10**7), "patience": (0, 10**12), "seed": (0, 2**31 - 1),
}  # fmt: skip


@dataclass(frozen=True)
class Validation:
    """When a run validates: `every` so many updates at these `depths` (and always at the median training depth) on
    the first `rows` of the validation split, with `metrics` beside the loss; the spectral radius every `radius` updates, on
    `radius_rows` rows."""

    every: int = 0
    depths: list = field(default_factory=list)
    rows: int = 512
    radius: int = 0
    radius_rows: int = 4
    metrics: list = field(default_factory=list)


@dataclass(frozen=True)
class Orders:
    """In which order the samples come: `shuffled` anew each epoch or as they stand, each batch `repeat` times in a row."""

    shuffled: bool = True
    repeat: int = 1


@dataclass(frozen=True)
class Saves:
    """When a run saves beside at its end: `every` so many updates (0: never), and at each validation that is the `best` so far; the
    newest `keep` checkpoints and the best are kept. With `parts` what is frozen of the model's base is left out of them."""

    every: int = 0
    keep: int = 2
    best: bool = True
    parts: bool = False


@dataclass(frozen=True)
class Recipe:
    """The whole run. `batch` is rows an update over all processes; `toy` holds the changes of a test-size run."""

    about: str
    model: dict
    data: dict
    updates: int
    batch: int
    depth: dict
    objective: dict = field(default_factory=lambda: {"kind": "final"})
    penalties: list = field(default_factory=list)
    optim: dict = field(default_factory=lambda: {"kind": "adamw", "lr": 1e-3})
    schedule: dict = field(default_factory=lambda: {"kind": "constant"})
    average: dict | None = None
    clip: float | None = 1.0
    accumulate: int = 1
    precision: str = "fp32"
    remat: str | dict = "none"  # a kind of REMATS, or {kind, options}
    compile: bool | Literal["auto"] = "auto"  # by torch.compile; auto: where text is trained on a GPU
    graph: bool | Literal["auto"] = (
        "auto"  # whole passes replayed as CUDA graphs, one per depth; auto: where they are compiled and all alike
    )
    patience: int = 10  # updates in a row that may be skipped for a loss that is not finite
    seed: int = 0
    order: Orders = field(default_factory=Orders)
    validate: Validation = field(default_factory=Validation)
    save: Saves = field(default_factory=Saves)
    track: str | dict | None = None  # a kind of TRACKERS, or {kind, options}: where the rows of the log go as well
    toy: dict = field(default_factory=dict)
    imported: list = field(default_factory=list)  # of a run: the files that its parts came from; a record, never executed

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise ValueError("recipe: " + "; ".join(problems))
        for where, table in TABLES.items():
            check_kind(where, getattr(self, where), table)
        check_kind("remat", self.remat_spec, REMATS)
        if self.track is not None:
            check_kind("track", self.track_spec, TRACKERS)
        for place, spec in enumerate(self.penalties):
            Weighted.check(f"penalties[{place}]", spec, PENALTIES)
        for place, spec in enumerate(self.validate.metrics):
            check_kind(f"validate: metrics[{place}]", spec, METRICS)
            if any(spec["kind"] == other["kind"] for other in self.validate.metrics[:place]):
                raise ValueError(f"validate: metrics: {spec['kind']} stands there twice; allowed: each kind once")
        if self.average is not None:
            check_kind("average", self.average, AVERAGES)

    def _problems(self) -> Iterator[str]:
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                yield f"{name} must be {f'at least {low}' if value < low else f'at most {high:,}'} (got {value})"
        if self.accumulate > 0 and self.batch % self.accumulate:
            yield f"batch ({self.batch}) must be a multiple of accumulate ({self.accumulate})"
        if self.precision not in PRECISIONS:
            yield f"precision is {self.precision!r}; {suggest(self.precision, PRECISIONS)}"
        for name in ("compile", "graph"):
            value = getattr(self, name)
            if not isinstance(value, bool) and value != "auto":
                yield f"{name} is {shown(value)}; allowed: auto, true or false"
        if self.clip is not None and self.clip <= 0:
            yield f"clip is {self.clip}; allowed: above 0, or null for none"
        sections = {
            "validate": {"every": 0, "radius": 0, "rows": 1, "radius_rows": 1},
            "save": {"every": 0, "keep": 1},
            "order": {"repeat": 1},
        }
        for section, numbers in sections.items():
            values = getattr(self, section)
            yield from (
                f"{section}: {n} is {getattr(values, n)}; allowed: at least {low}"
                for n, low in numbers.items()
                if getattr(values, n) < low
            )
        waiting = [spec for spec in self.penalties if isinstance(spec, Mapping) and spec.get("start_accuracy") is not None]
        if waiting and not self.validate.every:
            yield "penalties: start_accuracy waits for a validation; validate.every must be >= 1 (got 0)"
        if len({str(spec["start_accuracy"]) for spec in waiting}) > 1:
            yield "penalties: start_accuracy differs between penalties; allowed: one bar for all"
        wrong = [d for d in self.validate.depths if not is_whole(d, 1)]
        if wrong:
            yield f"validate: depths has {shown(wrong[0])}; allowed: whole numbers of at least 1"

    @property
    def remat_spec(self) -> dict[str, Any]:
        """How the loop keeps what its gradient needs, as a kind with its options."""
        return {"kind": self.remat} if isinstance(self.remat, str) else dict(self.remat)

    @property
    def track_spec(self) -> dict[str, Any]:
        """The tracker, as a kind with its options; empty where there is none."""
        return {"kind": self.track} if isinstance(self.track, str) else dict(self.track or {})

    def data_of(self) -> dict[str, Any]:
        """Returns the recipe as plain data."""
        return dataclasses.asdict(self)


RENAMED = {"look": "validate"}  # keys of recipes before 0.2

TABLES: dict[str, Mapping[str, type]] = {
    "model": MODELS, "data": DATA, "depth": RULES, "objective": OBJECTIVES, "optim": OPTIMISERS, "schedule": SCHEDULES,
}  # fmt: skip


def make_recipe(data: Any, where: str = "recipe", *, changes: Mapping[str, Any] | None = None, toy: bool = False) -> Recipe:
    """Returns the recipe of plain data, with its toy changes if wanted and then `changes` laid over it.

    Where the data would make a recipe without them, it is the changes that an error blames, not the file.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}: not a mapping of names to values")
    if toy:
        small = data.get("toy") or {}
        if not isinstance(small, Mapping):
            raise ValueError(f"{where}: toy is {shown(small)}; allowed: a mapping of names to values")
        data = merge(data, small)
    try:
        return _filled(merge(data, changes or {}))
    except ValueError as error:
        place = "override" if changes and _makes_one(data) else where
        raise ValueError(f"{place}: {str(error).removeprefix(f'{place}: ')}") from None


def _makes_one(data: Mapping[str, Any]) -> bool:
    try:
        _filled(data)
    except ValueError:
        return False
    return True


def _filled(data: Mapping[str, Any]) -> Recipe:
    for old, new in RENAMED.items():
        if old in data:
            raise ValueError(f"{old} is called {new} now; rename it")
    if "import" in data:
        raise ValueError("import stands in what is no recipe file of your own; import the file in Python, or give --import FILE")
    sections: dict[str, type] = {"order": Orders, "validate": Validation, "save": Saves}
    try:
        filled = {key: fill_section(sections[key], value, key) for key, value in data.items() if key in sections}
        return fill_section(Recipe, {**data, **filled}, "recipe")
    except ValueError as error:
        raise ValueError(f"{error}{missing_files(data.get('imported'))}") from None


def read_recipe(path: str | Path, overrides: Iterable[str] = (), *, toy: bool = False) -> Recipe:
    """Returns the recipe of a YAML file that may be anybody's, with `a.b=c` overrides laid over it: an import in it is refused."""
    return make_recipe(_read(Path(path)), str(path), changes=parse_overrides(overrides), toy=toy)


def open_recipe(path: str | Path, overrides: Iterable[str] = (), *, toy: bool = False) -> Recipe:
    """Returns the recipe of the user's own YAML file. The Python files that it imports are executed first; their paths start at
    the file's folder. The recipe.yaml of a run is nobody's own: there an import is refused, as by `read_recipe`."""
    path = Path(path)
    data = _read(path)
    if isinstance(data, Mapping) and "import" in data and not (path.name == "recipe.yaml" and RunFolder(path.parent).begun):
        named = data["import"]
        names = [named] if isinstance(named, str) else named
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{path}: import is {shown(named)}; allowed: a Python file, or a list of them")
        for name in names:
            import_file(name, path.parent)
        data = {key: value for key, value in data.items() if key != "import"}
    return make_recipe(data, str(path), changes=parse_overrides(overrides), toy=toy)


def shown_recipe(path: str | Path) -> str:
    """Returns a recipe with every setting resolved, to be read. What it imports is named, and not executed."""
    data = _read(Path(path))
    named = data.get("import") if isinstance(data, Mapping) else None
    if named is None:
        return written(make_recipe(data, str(path)))
    rest = {key: value for key, value in data.items() if key != "import"}
    return write_yaml({"import": named}) + written(make_recipe(rest, str(path)))


def _read(path: Path) -> Any:
    try:
        text = read_text(path, RECIPE_BYTES)
    except OSError as error:
        raise ValueError(f"recipe: {path} cannot be read ({getattr(error, 'strerror', None) or error})") from None
    return read_yaml(text, str(path))


def written(recipe: Recipe) -> str:
    """Returns a recipe as the YAML text that reads back to it."""
    return write_yaml(recipe.data_of())


def first_difference(a: Recipe, b: Recipe) -> str | None:
    """Returns the first setting, as `a.b`, in which two recipes train differently; None where they train the same."""
    both = [{key: value for key, value in recipe.data_of().items() if key not in FREE} for recipe in (a, b)]
    return next((f"{path} ({there!r} there, {here!r} here)" for path, (there, here) in differences(both)), None)
