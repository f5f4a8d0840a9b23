"""The questions of lm-eval's tasks from local files: which file of a folder belongs to which split of which task.

A file is called TASK_SPLIT.jsonl, TASK.jsonl where it is the split that is measured, each also with .gz. TASK is the name of a task
or part of one: `gsm8k_test.jsonl` serves gsm8k and gsm8k_cot, `math500.jsonl` hendrycks_math500.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loopwright.data.records import Files

SUFFIX = re.compile(r"\.jsonl(\.gz)?$")
SPLITS = {
    "train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation",
    "dev": "validation", "test": "test",
}  # fmt: skip
ROLES = ("test_split", "validation_split", "training_split", "fewshot_split")
MEAN = {"aggregation": "mean", "higher_is_better": True}

# what lm-eval lacks or expects in another copy of the data
OWN: dict[str, dict[str, Any]] = {
    # in the form of lm-eval's asdiv: the likelihood of the number, right where it is what greedy decoding says
    "svamp": {
        "task": "svamp", "output_type": "loglikelihood", "test_split": "test",
        "doc_to_text": "{{Body}}\nQuestion:{{Question}}\nAnswer:",
        "doc_to_target": "{{Answer | int if Answer == Answer | int else Answer}}",
        "metric_list": [{"metric": "acc", **MEAN}], "metadata": {"version": 1.0},
    },
    # the released files say `answer`, SuperGLUE's copy `label`
    "boolq": {"doc_to_target": "{{label if label is defined else answer | int}}"},
}  # fmt: skip


def find_files(folder: str | Path, task: str) -> dict[str, Path]:
    """Returns the files of a task by split, "" for the one without; of the longest part of the task's name that has some."""
    words = task.split("_")
    files: dict[tuple[str, ...], dict[str, Path]] = {}
    for path in sorted(Path(folder).iterdir()):
        if not SUFFIX.search(path.name):
            continue
        *name, last = re.split(r"[_-]", SUFFIX.sub("", path.name))
        split = SPLITS.get(last, "") if name else ""
        name = name if split else [*name, last]
        if any(words[i : i + len(name)] == name for i in range(len(words))):
            files.setdefault(tuple(name), {}).setdefault(split, path)
    return files[max(files, key=len)] if files else {}


def local_config(folder: str | Path, config: Mapping[str, Any], shots: int | None = None) -> tuple[dict[str, Any], Path]:
    """Returns a task's config with its data from files of a folder, and the file of its questions.

    The questions are those of the task's test split, or of its validation split where the folder has no other. Examples before a
    question must come from the split that lm-eval takes them from.
    """
    task, folder = config["task"], Path(folder)
    if not folder.is_dir():
        raise ValueError(f"task-data: {folder} is not a folder; give one with files such as {task}_test.jsonl")
    files = find_files(folder, task)
    measured = [config[role] for role in ROLES[:2] if config.get(role)]
    if not measured:
        raise ValueError(f"tasks: {task} has neither a test nor a validation split; nothing can be measured")
    there = {split: files[_plain(split)] for split in _splits(config) if _plain(split) in files}
    if not any(split in there for split in measured) and "" in files:
        there[measured[0]] = files[""]
    split = next((split for split in measured if split in there), None)
    if split is None:
        names = " or ".join(f"{task}_{_plain(split)}.jsonl" for split in measured)
        raise ValueError(f"task-data: {folder} has no questions of {task}; add {names}, or with .gz")
    examples, given = _examples(config)
    count = shots if shots is not None else config.get("num_fewshot") or 0
    if count and not given and examples not in there:
        raise ValueError(
            f"task-data: {task} shows {count} examples of its {examples} split, and {folder} has none; "
            f"add {task}_{_plain(str(examples))}.jsonl, or give --shots 0"
        )
    for path in set(there.values()):
        _check(path)
    changes: dict[str, Any] = {role: config[role] if config.get(role) in there else None for role in ROLES}
    if isinstance(config.get("fewshot_config"), Mapping) and config["fewshot_config"].get("split") not in (None, *there):
        changes["fewshot_config"] = {**config["fewshot_config"], "split": None}
    data = {"dataset_path": "json", "dataset_name": None, "custom_dataset": None}
    files_of = {"dataset_kwargs": {"data_files": {split: str(path) for split, path in there.items()}}}
    return {**config, **changes, **data, **files_of}, there[split]


def _examples(config: Mapping[str, Any]) -> tuple[str | None, bool]:
    """Returns the split that examples come from, as lm-eval has it, and whether the task brings its own instead."""
    fewshot = config.get("fewshot_config") or {}
    split = fewshot.get("split") or config.get("fewshot_split")
    given = split is None and fewshot.get("samples") is not None
    return split or next((config[role] for role in ("training_split", *ROLES[1::-1]) if config.get(role)), None), given


def _splits(config: Mapping[str, Any]) -> set[str]:
    fewshot = (config.get("fewshot_config") or {}).get("split")
    return {split for split in (*(config.get(role) for role in ROLES), fewshot) if split}


def _plain(split: str) -> str:
    return SPLITS.get(split, split)


def _check(path: Path) -> None:
    """Raises a ValueError in one line where a file does not hold records, before anybody else reads it."""
    if next(iter(Files(str(path))), None) is None:
        raise ValueError(f"{path}: has no questions; each line is one, as JSON")
