"""The rules of the code base as tests. Each rule of rules.py is also run on a small tree in which its violation is planted, so
that a rule that cannot fail would fail here.

The set of config fields, part options and flags is stored in options.txt. To change it, say so:
    python -m tests.test_architecture > tests/options.txt
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from loopwright.checkpoints.families import FAMILIES
from loopwright.cli import make_app
from loopwright.metrics.score import METRICS
from loopwright.model.config import PARTS, LoopedConfig
from loopwright.model.layers import NORMS
from loopwright.model.parts.adapters import ADAPTERS
from loopwright.model.parts.init import INITS
from loopwright.model.presets import PRESETS, preset
from loopwright.retrofitting.layout import LAYOUTS
from loopwright.retrofitting.systems import RetrofitPlan, systems
from loopwright.schema import options_of
from loopwright.training.gradient import REMATS
from loopwright.training.grpo import REWARDS
from loopwright.training.objectives.penalties import PENALTIES, Weighted
from loopwright.training.optim import AVERAGES
from loopwright.training.recipe import TABLES, Orders, Recipe, Saves, Validation
from loopwright.training.tracking import TRACKERS
from tests.rules import (
    RULES,
    Rule,
    circles_are_small,
    class_names_are_unique,
    every_room_has_its_tests,
    files_are_short,
    folders_are_small,
    functions_are_short,
    glossary_words,
    imports_point_down,
    module_names,
    no_hasattr,
    no_machine_in_files,
    one_loop,
    optional_packages_stay_home,
    public_names_have_docstrings,
    results_are_small,
    unnamed_entries,
    unread_fields,
)

ROOT = Path(__file__).parent.parent
STORED = Path(__file__).parent / "options.txt"
TRAINING = {
    **TABLES, "penalties": PENALTIES, "average": AVERAGES, "remat": REMATS, "metrics": METRICS, "track": TRACKERS,
    "reward": REWARDS,
}  # fmt: skip
REWRITE = "python -m tests.test_architecture > tests/options.txt"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule: Rule) -> None:
    assert rule(ROOT) == []


SOUND = {
    "loopwright/__init__.py": '"""All."""\nfrom loopwright.model.backbone import unroll\n',
    "loopwright/schema.py": '"""Settings."""\nfrom loopwright.version import VERSION\n',
    "loopwright/version.py": '"""Version."""\nVERSION = "1"\n',
    "loopwright/model/backbone.py": (
        '"""The loop."""\nfrom loopwright import schema\nfrom loopwright.model.part import Part\n\n\n'
        'def unroll(m, s, e, p):\n    """Yields."""\n    for t in range(4):\n        s = m.step(s, e, t, p)\n        yield s\n'
    ),
    "loopwright/model/part.py": (
        '"""Parts."""\n\n\nclass Part:\n    """A part."""\n\n    def start(self):\n        """Starts."""\n\n\n'
        'class Gate(Part):\n    """A gate."""\n\n    def start(self): ...\n\n    def forward(self, hidden_size): ...\n'
    ),
    "loopwright/data/text.py": '"""Files."""\n\n\ndef read():\n    """Reads."""\n    import datasets\n',
    "tests/test_schema.py": "",
    "tests/test_version.py": "",
    "tests/model/test_backbone.py": "",
    "tests/model/test_part.py": "",
    "loopwright/serving/app.py": '"""Routes."""\nimport starlette\n',
    "tests/serving/test_app.py": "",
    "tests/data/test_text.py": "",
    "README.md": "See http://example.org/home/page, a/home/b and the state of things.\n",
}
PUBLIC = 'def f():\n    """F."""\n'
PLANTS: list[tuple[Rule, str, str, str]] = [
    (
        imports_point_down,
        "loopwright/model/part.py",
        "from loopwright.checkpoints import load\n",
        "model imports loopwright.checkpoints.load",
    ),
    (imports_point_down, "loopwright/model/part.py", "from loopwright.metrics import x\n", "model imports loopwright.metrics.x"),
    (imports_point_down, "loopwright/model/part.py", "def f():\n    from loopwright import cli\n", "model imports loopwright.cli"),
    (imports_point_down, "loopwright/model/part.py", "import loopwright\n", "model imports loopwright"),
    (imports_point_down, "loopwright/model/part.py", "from loopwright import build\n", "model imports loopwright.build"),
    (imports_point_down, "loopwright/model/part.py", "from .backbone import unroll\n", "relative import"),
    (imports_point_down, "loopwright/extras.py", "", "extras has no row"),
    (
        circles_are_small,
        "loopwright/data/c0.py",
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from loopwright.data import c1\n",
        "7 files import each other: loopwright.data.c0, loopwright.data.c1",
    ),
    (optional_packages_stay_home, "loopwright/data/text.py", "import datasets\n", "datasets is imported with the module"),
    (
        optional_packages_stay_home,
        "loopwright/model/part.py",
        "def f():\n    import datasets.x\n",
        "datasets belongs in data/text.py",
    ),
    (
        optional_packages_stay_home,
        "loopwright/model/part.py",
        "if 1:\n    from datasets import load\n",
        "datasets is imported with",
    ),
    (optional_packages_stay_home, "loopwright/model/part.py", "def f():\n    import pydantic\n", "pydantic belongs in no file"),
    (optional_packages_stay_home, "loopwright/serving/app.py", "import datasets\n", "datasets is imported with the module"),
    (optional_packages_stay_home, "loopwright/model/part.py", "import uvicorn\n", "uvicorn is imported with the module"),
    (files_are_short, "loopwright/model/part.py", "x = 1\n" * 701, "701 lines; allowed: 700"),
    (files_are_short, "tests/model/test_part.py", "x = 1\n" * 701, "701 lines; allowed: 700"),
    (functions_are_short, "loopwright/model/part.py", "def f():\n" + "    x = 1\n" * 80, "f has 81 lines; allowed: 80"),
    (folders_are_small, "loopwright/data/x26.py", "", "loopwright/data: 27 modules; allowed: 26"),
    (every_room_has_its_tests, "loopwright/model/parts/tap.py", "", "loopwright/model/parts/tap.py: no tests in tests/model/parts"),
    (every_room_has_its_tests, "loopwright/run.py", "", "loopwright/run.py: no tests in tests/."),
    (public_names_have_docstrings, "loopwright/model/part.py", "", "loopwright/model/part.py: no docstring"),
    (public_names_have_docstrings, "loopwright/model/part.py", '"""A."""\ndef f(): ...\n', "f has no docstring"),
    (public_names_have_docstrings, "loopwright/model/part.py", '"""A."""\nclass A: ...\n', "A has no docstring"),
    (
        public_names_have_docstrings,
        "loopwright/model/part.py",
        '"""A."""\nclass A:\n    """A."""\n    def start(self): ...\n    def _own(self): ...\n',
        "start has no docstring",
    ),
    (class_names_are_unique, "loopwright/model/gate.py", '"""G."""\nclass Gate:\n    """G."""\n', "Gate is a class of"),
    (glossary_words, "loopwright/model/part.py", "def f(latents): ...\n", "the name latents"),
    (glossary_words, "loopwright/model/part.py", "self.num_steps = 3\n", "the name num_steps"),
    (glossary_words, "loopwright/model/part.py", "class RecurrentBlock: ...\n", "the name RecurrentBlock"),
    (
        glossary_words,
        "loopwright/model/part.py",
        'def f():\n    """One Iteration."""\n',
        "the word iteration in the docstring of f",
    ),
    (module_names, "loopwright/model/utils.py", "", "loopwright/model/utils.py: utils says nothing"),
    (module_names, "loopwright/common/x.py", "", "loopwright/common/x.py: common says nothing"),
    (
        one_loop,
        "loopwright/model/part.py",
        "def g(m):\n    while 1:\n        s = m.step(s, e, t, p)\n",
        "loopwright/model/part.py: g",
    ),
    (one_loop, "loopwright/model/part.py", "x = [m.step(s, e, t=t) for t in r]\n", "loopwright/model/part.py: the module"),
    (one_loop, "loopwright/model/part.py", "for t in r:\n    s = step(s, e, t, p)\n", "loopwright/model/part.py: the module"),
    (one_loop, "loopwright/model/backbone.py", PUBLIC, "no loop over steps anywhere"),
    (no_hasattr, "loopwright/model/part.py", "x = hasattr(y, 'z')\n", "loopwright/model/part.py:1: hasattr"),
    (results_are_small, "experiments/results/x/runs.jsonl", "0" * 10_000_001, "10,000,001 bytes; allowed: 10,000,000"),
    (no_machine_in_files, "docs/notes.md", "Data lie in /" + "home/me/data.\n", "docs/notes.md:1: /" + "home/m"),
]


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_sound_tree_has_no_complaints(tmp_path: Path) -> None:
    assert [complaint for rule in RULES for complaint in rule(plant(tmp_path, SOUND))] == []


def test_an_optimisers_step_is_no_second_loop(tmp_path: Path) -> None:
    plant(tmp_path, {**SOUND, "loopwright/model/part.py": "for batch in data:\n    optimizer.step()\n"})
    assert one_loop(tmp_path) == []


@pytest.mark.parametrize(("rule", "name", "text", "complaint"), PLANTS, ids=[f"{p[0].__name__}-{i}" for i, p in enumerate(PLANTS)])
def test_planted_violations_are_found(tmp_path: Path, rule: Rule, name: str, text: str, complaint: str) -> None:
    beside = {f"loopwright/data/x{i}.py": "" for i in range(25)} if rule is folders_are_small else {}  # and text.py
    if rule is circles_are_small:
        beside = {f"loopwright/data/c{i}.py": f"from loopwright.data.c{(i + 1) % 7} import x\n" for i in range(1, 7)}
    found = rule(plant(tmp_path, {**SOUND, **beside, name: text}))
    assert any(complaint in line for line in found), found


def test_every_rule_has_a_planted_violation() -> None:
    assert {plant[0] for plant in PLANTS} == set(RULES)


# what can be set


def all_options() -> list[str]:
    lines = [f"config {name}" for name in LoopedConfig.__annotations__]
    for table, kinds in {**PARTS, "adapters": ADAPTERS, "init": INITS}.items():
        lines += [f"part {table} {' '.join([kind, *options_of(part)])}" for kind, part in kinds.items()]
    lines += [f"part adapters {key}" for key in ("stack",)]
    lines += [f"recipe {name}" for section in (Recipe, Orders, Validation, Saves) for name in section.__dataclass_fields__]
    for table, kinds in TRAINING.items():
        lines += [f"training {table} {' '.join([kind, *options_of(part)])}" for kind, part in kinds.items()]
    lines += [f"retrofit {name}" for name in RetrofitPlan.__dataclass_fields__]
    lines += [f"retrofit layout {' '.join([kind, *options_of(rule)])}" for kind, rule in LAYOUTS.items()]
    weighing = [name for name in options_of(Weighted) if name not in ("penalty", "name")]
    lines += [f"training penalties {' '.join(weighing)}"]
    verbs = typer.main.get_command(make_app()).commands  # type: ignore[attr-defined]
    for verb, command in verbs.items():
        flags = [flag for param in command.params for flag in (*param.opts, *param.secondary_opts) if flag.startswith("-")]
        lines += [" ".join(["flag", verb, *flags])]
    return lines


def test_options_are_the_stored_ones() -> None:
    stored, now = STORED.read_text().splitlines(), all_options()
    added, gone = [x for x in now if x not in stored], [x for x in stored if x not in now]
    assert stored == now, f"options changed: added {added}, gone {gone}. If that is meant: {REWRITE}"


def test_docs_name_every_option_and_family() -> None:
    models, checkpoints = (
        set(re.findall(r"`([\w.-]+)`", (ROOT / "docs" / page).read_text())) for page in ("models.md", "checkpoints.md")
    )
    lines = all_options()
    wanted = {word for line in lines if line.split()[0] in ("config", "part") for word in line.split()[1:]}
    assert sorted(wanted - models) == []
    pages = (ROOT / "docs" / page for page in ("training.md", "objectives.md", "data.md"))
    training = set(re.findall(r"`([\w.-]+)`", "\n".join(page.read_text() for page in pages)))
    wanted = {word for line in lines if line.split()[0] in ("recipe", "training") for word in line.split()[1:]}
    assert sorted(wanted - training) == []
    retrofits = set(re.findall(r"`([\w.-]+)`", (ROOT / "docs" / "retrofit.md").read_text()))
    wanted = {word for line in lines if line.split()[0] == "retrofit" for word in line.split()[1:]}
    assert sorted((wanted | set(systems())) - retrofits) == []
    assert sorted(set(PRESETS) - models) == []
    assert sorted(set(FAMILIES) - checkpoints) == []


def test_every_config_field_is_read(tmp_path: Path) -> None:
    assert unread_fields(ROOT, list(LoopedConfig.__annotations__)) == []
    text = "class C:\n    def _problems(self):\n        return self.idle\n    def use(self):\n        return self.busy\n"
    plant(tmp_path, {"loopwright/model/config.py": text, "loopwright/model/x.py": "y = model.config.read + module.dropped\n"})
    assert unread_fields(tmp_path, ["idle", "busy", "read", "dropped"]) == ["idle", "dropped"]


def kinds_of_presets() -> set[str]:
    specs = [
        spec
        for name in PRESETS
        for spec in (preset(name).init, *(getattr(preset(name), part) for part in PARTS), *preset(name).adapters)
    ]
    return {spec["kind"] for spec in specs} | {preset(name).norm["kind"] for name in PRESETS}


def test_every_table_entry_is_used(tmp_path: Path) -> None:
    tables = {**PARTS, "adapters": ADAPTERS, "init": INITS, "norms": NORMS}
    entries = {table: set(names) - kinds_of_presets() for table, names in tables.items()}
    assert unnamed_entries(ROOT, {**entries, "presets": set(PRESETS), "families": set(FAMILIES)}) == []
    plant(tmp_path, {"tests/test_x.py": 'x = {"kind": "mix"}\nlw.build("huginn-tiny")\n'})
    assert unnamed_entries(tmp_path, {"gate": {"mix", "spare"}, "presets": {"huginn"}}) == ["gate: spare"]


if __name__ == "__main__":
    print("\n".join(all_options()))
