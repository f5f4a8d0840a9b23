"""Which file of a folder serves which split of which task, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from loopwright.evaluation.tasks import OWN, find_files, local_config

ARC = {"task": "arc_easy", "training_split": "train", "validation_split": "validation", "test_split": "test", "dataset_path": "ai2"}
GSM = {"task": "gsm8k", "training_split": "train", "fewshot_split": "train", "test_split": "test", "num_fewshot": 5}
NAMES = ["arc_easy_val.jsonl.gz", "arc_challenge_validation.jsonl", "gsm8k_test.jsonl", "math500.jsonl", "asdiv.jsonl", "notes.txt"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        text = json.dumps({"question": "?"})
        (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return tmp_path


@pytest.mark.parametrize(
    ("task", "files"),
    [
        ("arc_easy", {"validation": "arc_easy_val.jsonl.gz"}),
        ("arc_challenge", {"validation": "arc_challenge_validation.jsonl"}),
        ("gsm8k_cot", {"test": "gsm8k_test.jsonl"}),
        ("hendrycks_math500", {"": "math500.jsonl"}),
        ("asdiv", {"": "asdiv.jsonl"}),
        ("mgsm8k", {}),
        ("arc", {}),
    ],
)
def test_files_are_found_by_the_name_of_the_task(folder: Path, task: str, files: dict[str, str]) -> None:
    assert {split: path.name for split, path in find_files(folder, task).items()} == files


def test_the_longest_name_wins(folder: Path) -> None:
    (folder / "gsm8k_cot_test.jsonl").write_text("{}")
    assert find_files(folder, "gsm8k_cot")["test"].name == "gsm8k_cot_test.jsonl"
    assert find_files(folder, "gsm8k")["test"].name == "gsm8k_test.jsonl"


def test_the_validation_split_stands_in_for_a_test_split_that_is_not_there(folder: Path) -> None:
    config, path = local_config(folder, ARC)
    assert (config["test_split"], config["validation_split"], config["training_split"]) == (None, "validation", None)
    assert path.name == "arc_easy_val.jsonl.gz" and config["dataset_kwargs"] == {"data_files": {"validation": str(path)}}
    (folder / "arc_easy_test.jsonl").write_text("{}")
    assert local_config(folder, ARC)[1].name == "arc_easy_test.jsonl"


def test_a_file_without_a_split_is_the_one_that_is_measured(folder: Path) -> None:
    config, path = local_config(folder, {"task": "asdiv", "validation_split": "validation"})
    assert config["validation_split"] == "validation" and path.name == "asdiv.jsonl" and config["dataset_path"] == "json"


def test_examples_come_from_their_own_split_or_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"gsm8k shows 5 examples of its train split, and .* has none; add gsm8k_train.jsonl, or"):
        local_config(folder, GSM)
    assert local_config(folder, GSM, shots=0)[0]["fewshot_split"] is None
    with pytest.raises(ValueError, match="arc_easy shows 2 examples of its train split"):
        local_config(folder, ARC, shots=2)
    own = {"task": "asdiv", "test_split": "test", "num_fewshot": 8, "fewshot_config": {"samples": [{}]}}
    assert local_config(folder, own)[0]["num_fewshot"] == 8
    (folder / "gsm8k_train.jsonl").write_text("{}")
    assert set(local_config(folder, GSM)[0]["dataset_kwargs"]["data_files"]) == {"train", "test"}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"task": "boolq", "validation_split": "validation"}, "has no questions of boolq; add boolq_validation.jsonl, or with .gz"),
        ({"task": "asdiv"}, "asdiv has neither a test nor a validation split"),
        ({"task": "empty", "test_split": "test"}, r"empty.jsonl: has no questions"),
        ({"task": "broken", "test_split": "test"}, r"broken.jsonl:1: not valid JSON"),
    ],
)
def test_what_is_missing_is_told_in_one_line(folder: Path, config: dict[str, Any], said: str) -> None:
    (folder / "empty.jsonl").write_text("")
    (folder / "broken.jsonl").write_text("{")
    with pytest.raises(ValueError, match=said) as told:
        local_config(folder, config)
    assert "\n" not in str(told.value)
    with pytest.raises(ValueError, match="is not a folder"):
        local_config(folder / "nowhere", config)


def test_tasks_of_our_own_render() -> None:
    from jinja2 import Environment

    def said(task: str, field: str, **doc: Any) -> str:
        return Environment().from_string(OWN[task][field]).render(**doc)

    assert said("svamp", "doc_to_target", Answer=51.0) == "51" and said("svamp", "doc_to_target", Answer=0.5) == "0.5"
    assert said("svamp", "doc_to_text", Body="Two cats.", Question="How many?") == "Two cats.\nQuestion:How many?\nAnswer:"
    assert said("boolq", "doc_to_target", answer=True) == "1" and said("boolq", "doc_to_target", label=0) == "0"
