"""What transformers' and TRL's trainers, collators and pipelines hand to a model beside the arguments of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loopwright.model.traced import is_recorded
from loopwright.untrusted import shown

# of a kernel that takes rows laid end to end: how long the longest is, which the sums of lengths say already
_LONGEST = ("max_length_q", "max_length_k")
TOKENS = ("cache_position", "cu_seq_lens_q", "cu_seq_lens_k", *_LONGEST, "seq_idx", "token_type_ids")
LOSS = ("num_items_in_batch", "shift_labels")


@dataclass(frozen=True)
class PassWords:
    """The words of one call: the documents [1, T] of a row, the number that the loss is a mean over, labels already shifted."""

    segment_ids: Tensor | None = None
    items: Tensor | int | None = None
    shifted: Tensor | None = None


def read_words(words: Mapping[str, Any], tokens: Tensor | None, held: int, *, loss: bool = False) -> PassWords:
    """Returns what the words mean for a pass of `tokens` [B, T, …] after `held` cached ones; what would be ignored is refused."""
    allowed = (*TOKENS, *LOSS) if loss else TOKENS
    said = {name: value for name, value in words.items() if value is not None}
    for name in said:
        if name not in allowed:
            raise TypeError(f"forward: {name!r} is no argument of a looped model; beside its own it takes {', '.join(allowed)}")
    if not said:
        return PassWords()
    rows, length = tokens.shape[:2] if isinstance(tokens, Tensor) and tokens.dim() > 1 else (0, 0)  # the model says what is wrong
    types, here = said.get("token_type_ids"), said.get("cache_position")
    if not is_recorded():  # a recorded program must not depend on what a tensor holds
        if types is not None and bool((types != 0).any()):
            raise ValueError("token_type_ids: not all 0; a looped model has no token types, leave them out")
        if here is not None and here.tolist() != list(range(held, held + length)):
            raise ValueError(f"cache_position: {here.tolist()}; allowed: {length} places from {held} on, after the tokens held")
    return PassWords(_documents(said, rows, length, held), said.get("num_items_in_batch"), said.get("shift_labels"))


def _documents(said: Mapping[str, Any], rows: int, length: int, held: int) -> Tensor | None:
    """Returns the number of the document of each token, as `cu_seq_lens_q` or `seq_idx` says it."""
    ends, numbers = said.get("cu_seq_lens_q"), said.get("seq_idx")
    keys = said.get("cu_seq_lens_k", ends)
    for name in ("cu_seq_lens_q", "seq_idx"):
        if held and name in said:
            raise ValueError(f"{name}: after {held} cached tokens; say where a document begins by position_ids or segment_ids")
    looked_at = not is_recorded()
    if looked_at and keys is not None and (ends is None or not torch.equal(ends, keys)):
        raise ValueError("cu_seq_lens_k: not cu_seq_lens_q; queries and keys of a looped model are the same tokens")
    if ends is None:
        return numbers
    if looked_at and (rows != 1 or not _sums_to(ends, length)):
        given = f"cu_seq_lens_q: {shown(ends.tolist())} for {rows} rows of {length} tokens"
        raise ValueError(f"{given}; allowed: sums of lengths, from 0 to {length}, of one row")
    here = torch.arange(length, device=ends.device).to(ends)
    documents = torch.searchsorted(ends[1:].contiguous(), here, right=True)[None]
    if looked_at and numbers is not None and not torch.equal(numbers.diff() != 0, documents.diff() != 0):
        raise ValueError("seq_idx: other documents than those of cu_seq_lens_q; give one of the two")
    return documents


def _sums_to(ends: Tensor, length: int) -> bool:
    """Whether these are sums of lengths: they begin at 0, never fall and end at `length`."""
    return ends.numel() > 1 and int(ends[0]) == 0 and int(ends[-1]) == length and bool((ends.diff() >= 0).all())
