"""Prompts for an analysis: a file, a known set (gsm8k, hellaswag) out of a data folder, or the text itself."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

import torch

from loopwright.data.records import SUFFIXES, Files, text_field
from loopwright.settings import suggest
from loopwright.untrusted import user_path

# the files of a set that are looked for in the data folder, in this order, and the field that holds the prompt
SETS: dict[str, tuple[tuple[str, ...], str]] = {
    "gsm8k": (("gsm8k_test", "gsm8k"), "question"),
    "hellaswag": (("hellaswag_val", "hellaswag_validation", "hellaswag"), "ctx"),
}
FIELDS = ("tokens", "prompt", "text", "question", "ctx")  # of a .jsonl file, the first that is there
DATA = "LOOPWRIGHT_DATA"  # names the data folder where no option does

Prompt = str | list[int]


def read_prompts(
    source: str, *, data: str | None = None, examples: int | None = None, seed: int = 0, environment: Mapping[str, str] = os.environ
) -> list[Prompt]:
    """Returns the prompts of a source: of a .jsonl file (fields as FIELDS; "tokens" are ids, which need no tokenizer), a line each
    of a .txt file, a named set out of the `data` folder, or the source itself as the one prompt.

    Of more than `examples` prompts, that many are drawn, in their order: a pure function of the seed.
    """
    if source in SETS:
        path, field = _find(source, data or environment.get(DATA))
        prompts = _of_file(path, (field,))
    elif _is_path(source):
        prompts = _of_file(user_path(source), FIELDS)
    elif _is_word(source) and get_close_matches(source, SETS):
        raise ValueError(f"prompts: {source!r} is no file and no set; {suggest(source, SETS)}, a file, or a text of more words")
    elif source.strip():
        prompts = [source]
    else:
        raise ValueError("prompts: an empty text; allowed: a file, a text, " + ", ".join(SETS))
    if not prompts:
        raise ValueError(f"prompts: {source} holds no prompt; allowed: at least one line that is not empty")
    return [prompts[i] for i in drawn(len(prompts), examples, seed)]


def drawn(count: int, examples: int | None, seed: int) -> list[int]:
    """Returns which of `count` prompts are taken, in their order: all of them, or `examples` that the seed decides."""
    if examples is not None and examples < 1:
        raise ValueError(f"examples: {examples}; allowed: at least 1")
    if examples is None or examples >= count:
        return list(range(count))
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:examples].sort().values.tolist()


def _is_path(source: str) -> bool:
    try:
        there = Path(source).expanduser().is_file()
    except (OSError, ValueError, RuntimeError):  # too long for a name, a letter no name has, no such user
        there = False
    return there or (
        _is_word(source) and source.endswith(SUFFIXES)
    )  # what has spaces and is no file is a text, whatever it ends with


def _is_word(source: str) -> bool:
    return not any(letter.isspace() for letter in source)


def _find(name: str, folder: str | None) -> tuple[Path, str]:
    stems, field = SETS[name]
    wanted = [f"{stem}{suffix}" for stem in stems for suffix in (".jsonl", ".jsonl.gz")]
    if folder is None:
        raise ValueError(
            f"prompts: {name} lies in no known folder; give --data FOLDER (or {DATA}) with {stems[0]}.jsonl or .jsonl.gz"
        )
    there = next((path for path in (user_path(folder) / file for file in wanted) if path.is_file()), None)
    if there is None:
        raise FileNotFoundError(f"prompts: {folder} holds no {name}; looked for: {', '.join(wanted)}")
    return there, field


def _of_file(path: Path, fields: Sequence[str]) -> list[Prompt]:
    if not path.is_file():
        raise FileNotFoundError(f"prompts: {path}: there is no such file")
    prompts: list[Prompt] = []
    for record in Files(str(path), separator="\n"):
        where, given = record
        field = next((name for name in fields if name in given), fields[0] if len(fields) == 1 else "text")
        if field == "tokens":
            tokens = given["tokens"]
            if not isinstance(tokens, list) or not tokens or not all(type(n) is int and n >= 0 for n in tokens):
                raise ValueError(f"{where}: 'tokens' is no list of token ids; allowed: whole numbers of at least 0, one or more")
            prompts.append(tokens)
            continue
        text = text_field(record, field)
        if text is not None:
            prompts.append(text)
    return prompts
