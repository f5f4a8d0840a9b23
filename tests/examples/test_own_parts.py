"""The examples run as they stand: own_parts is built, costed, trained, saved, loaded and generated from, in a fresh process too.

And nothing but what the user names is executed: a run and a model folder may be a stranger's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import loopwright as lw
from loopwright.cli import continuation, results
from loopwright.cli.models import inspect
from loopwright.cli.runs import train as train_verb
from loopwright.model.cost import pass_flops
from loopwright.recipes import recipe
from loopwright.schema import read_yaml, write_yaml
from loopwright.training.loop import train
from loopwright.training.recipe import make_recipe
from loopwright.training.report import Run
from tests.own_kinds import own_kinds, table_of

ROOT = Path(__file__).parent.parent.parent
PARTS, RECIPE = ROOT / "examples" / "own_parts.py", ROOT / "examples" / "own_parts.yaml"
OWN = {"injection": "scaled", "objective": "last-two", "penalty": "state-size", "data": "alphabet"}
FEW = ["updates=3", "validate.every=3"]


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run of the example, with its parts registered for as long as it is used."""
    with pytest.MonkeyPatch.context() as patch, own_kinds():
        patch.chdir(ROOT)
        yield train(recipe(str(RECIPE), FEW), tmp_path_factory.mktemp("runs") / "own")
    sys.modules.pop("own_parts", None)


@pytest.fixture
def strange(outcome: Run) -> Iterator[Path]:
    """The same run where nobody has imported its parts."""
    with own_kinds():
        for place, name in OWN.items():
            del table_of(place)[name]
        from loopwright import registry as imports

        imports._FILES.clear()
        yield outcome.folder.path


def test_the_file_is_short() -> None:
    assert len(PARTS.read_text().splitlines()) <= 60


def test_the_example_is_costed_trained_saved_and_generated_from(outcome: Run, tmp_path: Path) -> None:
    config = outcome.model.config
    assert config.injection == {"kind": "scaled", "gain": 0.5} and config.step_tables == ["injection"]
    assert pass_flops(config)["injection"] == 0  # a product of channels is no matrix product
    row = json.loads(outcome.folder.log.read_text().splitlines()[-2])
    assert row["state-size"] > 0 and "loss_last" in row
    assert outcome.model.injection.gains.grad is None and not bool((outcome.model.injection.gains == 0.5).all())
    lw.save(outcome.model, tmp_path / "model")
    ids = torch.tensor([[2, 3, 4]])
    assert torch.equal(lw.load(tmp_path / "model")(ids).logits, outcome.model(ids).logits)
    assert lw.load(outcome.folder.path).generate(ids, max_new_tokens=2).shape == (1, 5)


def test_a_run_names_the_file_of_its_parts(outcome: Run) -> None:
    data = read_yaml(outcome.folder.recipe.read_text(), "run")
    assert data["imported"] == ["examples/own_parts.py"] and "import" not in data
    assert make_recipe(data).objective == {"kind": "last-two"}


@pytest.mark.slow
def test_the_trained_example_passes_every_check(outcome: Run) -> None:
    report = lw.check(outcome.model)
    assert report.ok, report.rows


@pytest.mark.slow
def test_a_fresh_process_needs_the_import_and_then_does_all(outcome: Run) -> None:
    def loopwright(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "loopwright", *words], cwd=ROOT, capture_output=True, text=True, check=False)

    run = str(outcome.folder.path)
    refused = loopwright("generate", run, "abc")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1 and "--import examples/own_parts.py" in refused.stderr
    told = loopwright("generate", run, "abc", "--import", "examples/own_parts.py", "--max-new-tokens", "3")
    assert told.returncode == 0 and len(told.stdout.strip()) == 3
    facts = loopwright("inspect", run, "--import", "examples/own_parts.py", "--json")
    assert json.loads(facts.stdout)["parameters"]["injection"]["unique"] == 4 * 32
    with_data = loopwright("evaluate", run, "--import", "examples/own_parts.py", "--depths", "1,2", "--no-decode", "--overwrite")
    assert with_data.returncode == 0, with_data.stderr


# what is not executed

NAMED = r"if it is a part of your own, import its file first .*--import examples/own_parts.py$"


def test_without_its_parts_a_run_is_one_line_that_names_kind_and_file(strange: Path) -> None:
    with pytest.raises(ValueError, match=rf"injection: unknown kind 'scaled'; allowed: .*; {NAMED}") as caught:
        lw.load(strange)
    assert "\n" not in str(caught.value)
    for verb in (lambda: inspect(str(strange)), lambda: continuation.generate(str(strange), "abc")):
        with pytest.raises(ValueError, match=NAMED):
            verb()
    with pytest.raises(ValueError, match=NAMED):
        results.evaluate(str(strange))


def _planted(strange: Path, tmp_path: Path, key: str) -> tuple[Path, Path]:
    """A copy of a run whose recipe names a file that leaves a trace where it is executed."""
    mark = tmp_path / "executed"
    (tmp_path / "evil.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    run = tmp_path / "run"
    subprocess.run(["cp", "-r", str(strange), str(run)], check=True)
    data: dict[str, Any] = read_yaml((run / "recipe.yaml").read_text(), "run")
    data.pop("imported")
    (run / "recipe.yaml").write_text(write_yaml({**data, key: [str(tmp_path / "evil.py")]}))
    return run, mark


@pytest.mark.parametrize("key", ["import", "imported"])
def test_a_strangers_run_executes_nothing(strange: Path, tmp_path: Path, key: str) -> None:
    run, mark = _planted(strange, tmp_path, key)
    loads = {**read_yaml(RECIPE.read_text(), "own"), "model": {"kind": "load", "source": str(run)}, "about": "a load"}
    loads = {name: value for name, value in loads.items() if name not in ("import", "objective", "penalties")}
    loads["data"] = {"kind": "addition", "digits": 2, "train": 40, "valid": 8, "test": 8}
    (tmp_path / "load.yaml").write_text(write_yaml(loads))
    openings = [
        lambda: lw.load(run),
        lambda: inspect(str(run)),
        lambda: continuation.generate(str(run), "abc"),
        lambda: results.evaluate(str(run)),
        lambda: train_verb(str(run / "recipe.yaml"), out=str(tmp_path / "again")),
        lambda: train_verb(str(run / "recipe.yaml"), out=str(run), resume=True),
        lambda: train_verb(str(tmp_path / "load.yaml"), out=str(tmp_path / "loaded")),
    ]
    for opening in openings:
        with pytest.raises(ValueError, match=r"unknown kind|import stands in what is no recipe file of your own"):
            opening()
    assert not mark.exists()


def test_a_resumed_run_executes_the_users_recipe_alone(outcome: Run, tmp_path: Path) -> None:
    run, mark = _planted(outcome.folder.path, tmp_path, "import")
    with pytest.raises(ValueError, match=r"recipe.yaml: import stands in what is no recipe file of your own; .* --import FILE"):
        train(recipe(str(RECIPE), FEW), run, resume=True)
    assert not mark.exists()


def test_the_users_own_recipe_is_executed_by_its_path(tmp_path: Path) -> None:
    run, mark = tmp_path / "mine.yaml", tmp_path / "executed"
    (tmp_path / "beside.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    data = read_yaml(RECIPE.read_text(), "own")
    with own_kinds():
        run.write_text(write_yaml({**data, "import": ["beside.py", str(PARTS)]}))
        assert recipe(str(run)).data == {"kind": "alphabet", "length": 6} and mark.exists()
        run.write_text(write_yaml({**data, "import": {"a": 1}}))
        with pytest.raises(ValueError, match=r"mine.yaml: import is {'a': 1}; allowed: a Python file, or a list of them"):
            recipe(str(run))
    with pytest.raises(ValueError, match="recipe: import stands in what is no recipe file of your own"):
        make_recipe(data)
