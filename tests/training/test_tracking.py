"""What trackers are told: everything once, also over a resumption; a tracker that is missing or fails costs one line and no row."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loopwright.storage.files import DiskFull, read_json
from loopwright.storage.run import RunFolder
from loopwright.training import tracking
from loopwright.training.report import Silent, read_log
from loopwright.training.tracking import TRACKERS, find_tracker, flat
from tests.training.runs import small, train

NAMES = sorted(TRACKERS)
RECORD = "tracking.json"


class Server:
    """Stands in for a tracker's package and its server: tracked runs by name, each a list of (update, numbers)."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.runs: dict[str, list[tuple[int, dict[str, float]]]] = {}
        self.calls: list[dict[str, Any]] = []
        self.fails_at, self.finished = fails_at, 0

    def init(self, **given: Any) -> SimpleNamespace:
        self.calls.append(given)
        rows = self.runs.setdefault(given.get("id", given["name"]), [])
        return SimpleNamespace(log=lambda numbers, step: self._take(rows, numbers, step), finish=self._finish)

    def board(self, folder: str) -> SimpleNamespace:
        rows = self.runs.setdefault(folder, [])

        def scalar(name: str, value: float, *, global_step: int) -> None:
            self._take(rows, {name: value}, global_step)

        return SimpleNamespace(add_scalar=scalar, flush=lambda: None, close=self._finish)

    def mlflow(self) -> SimpleNamespace:
        """MLflow gives each run a number of its own, and finds runs by their names."""
        names: list[str] = []

        def begin(run_id: int | None, run_name: str, **given: Any) -> None:
            names.append(run_name if run_id is None else names[run_id])
            self.calls.append({"name": names[-1]})
            self.runs.setdefault(names[-1], [])

        def search(experiment_names: list[str], filter_string: str, output_format: str) -> list[SimpleNamespace]:
            assert output_format == "list" and experiment_names == ["loopwright"]
            ending = filter_string.removeprefix("attributes.run_name LIKE '%").removesuffix("'")
            found = {name: names.index(name) for name in names if name.endswith(ending)}
            return [SimpleNamespace(info=SimpleNamespace(run_name=name, run_id=place)) for name, place in found.items()]

        def metrics(numbers: dict[str, float], step: int) -> None:
            self._take(self.runs[names[-1]], numbers, step)

        def params(values: dict[str, Any]) -> None:
            assert "config" not in self.calls[0]  # they can be given once
            self.calls[-1]["config"] = values

        return SimpleNamespace(
            search_experiments=lambda filter_string: [], create_experiment=lambda **given: "0", start_run=begin, search_runs=search,
            log_metrics=metrics, log_params=params, end_run=self._finish, __spec__=object(),
            utils=SimpleNamespace(validation=SimpleNamespace(MAX_PARAM_VAL_LENGTH=6000, MAX_PARAMS_TAGS_PER_BATCH=100)),
        )  # fmt: skip

    def _take(self, rows: list[tuple[int, dict[str, float]]], numbers: dict[str, float], step: int) -> None:
        if step == self.fails_at:
            raise ConnectionError("the server\nis gone")
        rows.append((step, numbers))

    def _finish(self) -> None:
        self.finished += 1


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **given: Any) -> Server:
    server = Server(**given)
    module = server.mlflow() if name == "mlflow" else SimpleNamespace(init=server.init, __spec__=object())
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=server.board))
    return server


def told(rows: list[tuple[int, dict[str, float]]]) -> list[tuple[int, str]]:
    return sorted((update, name) for update, numbers in rows for name in numbers)


@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_sent_once_also_when_the_run_is_stopped_and_resumed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, reporter = stand_in(monkeypatch, name), Silent()
    recipe = small({"track": name, "save": {"every": 2}, "updates": 6})

    def killed(row: dict[str, Any]) -> None:
        if row["update"] == 4:  # its row is sent, and is not in the checkpoint after update 4
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path, reporter=reporter, on_update=killed)
    train(recipe, tmp_path, reporter=reporter, resume=True)
    [(run, rows)] = server.runs.items()
    assert told(rows) == told([(row["update"], dict(flat(row))) for row in read_log(tmp_path / "log.jsonl")])
    assert {"loss", "valid/2/loss", "tokens_per_second"} <= {name for _, name in told(rows)} and server.finished == 2
    assert name == "tensorboard" or (run.startswith(tmp_path.name) and server.calls[0]["config"]["updates"] == 6)
    assert not [note for note in reporter.notes if "tracking" in note]


@pytest.mark.parametrize("name", NAMES)
def test_a_tracker_that_fails_in_the_middle_costs_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, reporter = stand_in(monkeypatch, name, fails_at=2), Silent()
    run = train(small({"track": {"kind": name}, "updates": 4}), tmp_path, reporter=reporter)
    assert run.finished and [row["update"] for row in read_log(tmp_path / "log.jsonl") if "loss" in row] == [0, 1, 2, 3]
    [note] = [note for note in reporter.notes if "tracking" in note]
    assert note.startswith(f"tracking: {name} failed (ConnectionError: the server") and "\n" not in note
    assert {update for rows in server.runs.values() for update, _ in rows} == {0, 1}


@pytest.mark.ecosystem
def test_mlflow_itself_keeps_one_run_of_a_stopped_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    recipe, reporter, folder = small({"track": "mlflow", "save": {"every": 2}, "updates": 6}), Silent(), tmp_path / 'it\'s "mine"'
    train(recipe, folder, reporter=reporter, on_update=lambda row: row["update"] == 3)
    train(recipe, folder, reporter=reporter, resume=True)
    assert not [note for note in reporter.notes if "tracking" in note]
    [run] = mlflow.search_runs(experiment_names=["loopwright"], output_format="list")
    kept = mlflow.MlflowClient().get_metric_history
    losses = [(row["update"], row["loss"]) for row in read_log(folder / "log.jsonl") if "loss" in row]
    assert [(m.step, m.value) for m in kept(run.info.run_id, "loss")] == losses and len(losses) == 6
    assert run.data.params["updates"] == "6" and kept(run.info.run_id, "valid/2/loss") and run.info.status == "FINISHED"


def test_one_that_cannot_begin_costs_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(**given: Any) -> None:
        raise TimeoutError("no route to host")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=offline, __spec__=object()))
    reporter = Silent()
    assert train(small({"track": "wandb", "updates": 1}), tmp_path, reporter=reporter).finished
    assert [n for n in reporter.notes if "wandb could not begin (TimeoutError: no route to host); training goes on" in n]


def test_one_that_is_not_installed_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="track: wandb is not installed; pip install wandb, or leave track out"):
        train(small({"track": "wandb"}), tmp_path / "run")
    assert not (tmp_path / "run").exists() and find_tracker(small()) is None


def test_names_and_options_are_checked() -> None:
    with pytest.raises(ValueError, match=r"did you mean .wandb"):
        small({"track": "wandbb"})
    with pytest.raises(ValueError, match="project"):
        small({"track": {"kind": "tensorboard", "project": "x"}})


def test_a_new_run_of_the_same_folder_name_is_another_tracked_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = stand_in(monkeypatch, "trackio")
    for place in ("a", "b"):
        train(small({"track": {"kind": "trackio", "project": "mine"}, "updates": 1}), tmp_path / place / "run")
    assert len(server.runs) == 2 and all(name.startswith("run-") for name in server.runs)
    assert {call["project"] for call in server.calls} == {"mine"} and (tmp_path / "a" / "run" / RECORD).is_file()


@pytest.mark.parametrize("content", ['{"trackio": "ru', "[]", '{"trackio": 5}', "\xff"])
def test_a_damaged_record_costs_one_line_and_a_new_name(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, recipe, notes = stand_in(monkeypatch, "trackio"), small({"track": "trackio"}), []
    (tmp_path / RECORD).write_bytes(content.encode("latin-1"))
    tracking.begin_tracking(find_tracker(recipe), recipe, RunFolder(tmp_path), notes.append, resume=True).close()
    [note] = notes
    assert note.startswith("tracking: ") and RECORD in note and note.endswith("goes on, as a new tracked run") and "\n" not in note
    [name] = server.runs
    assert name.startswith(f"{tmp_path.name}-") and read_json(tmp_path / RECORD) == {"trackio": name}


def test_a_record_that_cannot_be_written_costs_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: Any) -> None:
        raise DiskFull(f"{path}: the disk is full")

    server, reporter = stand_in(monkeypatch, "trackio"), Silent()
    monkeypatch.setattr(tracking, "write_json", full)
    assert train(small({"track": "trackio", "updates": 1}), tmp_path, reporter=reporter).finished
    [note] = [note for note in reporter.notes if "tracking" in note]
    assert note.startswith("tracking: ") and f"{RECORD}: the disk is full; training goes on" in note and "\n" not in note
    assert len(server.runs) == 1


def test_rows_become_flat_numbers() -> None:
    row = {
        "update": 3,
        "loss": 1,
        "depth": [2, 4],
        "skipped": True,
        "rows": [0, 8],
        "z": float("nan"),
        "valid": {8: {"exact": None, "loss": 0.5}},
    }
    assert dict(flat(row)) == {"loss": 1.0, "depth": 3.0, "skipped": 1.0, "valid/8/loss": 0.5}
