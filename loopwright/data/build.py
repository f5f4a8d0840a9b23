"""Data by kind: `{"kind": …, options}` → splits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loopwright.data.batch import Progress, Splits
from loopwright.data.chat import Chat
from loopwright.data.tasks.addition import Addition, Columns
from loopwright.data.tasks.chain import Chain
from loopwright.data.tasks.hops import Hops
from loopwright.data.tasks.stories import Stories
from loopwright.data.text import Hub, Text
from loopwright.schema import Given, Kinds, build_kind, check_kind
from loopwright.untrusted import user_path


def build_data(spec: Mapping[str, Any], folder: Path | None = None, progress: Progress | None = None) -> Splits:
    """Returns the splits that a spec describes. Token shards are kept in `folder`, or in the user's cache; tasks write nothing."""
    check_kind("data", spec, DATA)
    return build_kind(spec, DATA).splits(cache_folder() if folder is None else Path(folder), progress)


def cache_folder() -> Path:
    """Returns where token shards are kept where nobody says where."""
    return user_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "loopwright" / "tokens"


def check_vocab(splits: Splits, vocab_size: int) -> None:
    """Raises a ValueError where the data has ids that a model with `vocab_size` tokens lacks."""
    if splits.vocab_size > vocab_size:
        raise ValueError(
            f"data: its ids go up to {splits.vocab_size - 1}, the model has {vocab_size} tokens (vocab_size); "
            f"allowed: a vocab_size of {splits.vocab_size} or more, or the model's own tokenizer"
        )


DATA = Kinds(
    "data",
    {
        "addition": Addition,
        "hops": Hops,
        "chain": Chain,
        "columns": Columns,
        "stories": Stories,
        "text": Text,
        "hub": Hub,
        "chat": Chat,
        "given": Given,
    },
    offers=["splits"],
)  # fmt: skip
