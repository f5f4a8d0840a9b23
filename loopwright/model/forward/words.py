"""What transformers' and TRL's trainers, collators and pipelines hand to a model beside the arguments of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# of a kernel that takes rows laid end to end: how long the longest is, which the sums of lengths say already
_LONGEST = ("max_length_q", "max_length_k")
TOKENS = ("cache_position", "cu_seq_lens_q", "cu_seq_lens_k", *_LONGEST, "seq_idx", "token_type_ids")
LOSS = ("num_items_in_batch", "shift_labels")


@dataclass(frozen=True)
class Words:
    """The words of one call: the documents [1, T] of a row, the number that the loss is a mean over, labels already shifted."""

    segment_ids: Tensor | None = None
    items: Tensor | int | None = None
    shifted: Tensor | None = None


def read_words(words: Mapping[str, Any], tokens: Tensor | None, held: int, *, loss: bool = False) -> Words:
    """Returns what the words mean for a pass of `tokens` [B, T, …] after `held` cached ones; what would be ignored is refused."""
    allowed = (*TOKENS, *LOSS) if loss else TOKENS
    said = {name: value for name, value in words.items() if value is not None}
    for name in said:
        if name not in allowed:
            raise TypeError(f"forward: {name!r} is no argument of a looped model; beside its own it takes {', '.join(allowed)}")
    types, here, ends = said.get("token_type_ids"), said.get("cache_position"), said.get("cu_seq_lens_q")
    if not said:
        return Words()
    rows, length = tokens.shape[:2] if isinstance(tokens, Tensor) and tokens.dim() > 1 else (0, 0)  # the model says what is wrong
    if not torch.compiler.is_compiling():  # a compiled graph must not depend on what a tensor holds
        if types is not None and bool((types != 0).any()):
            raise ValueError("token_type_ids: not all 0; a looped model has no token types, leave them out")
        if here is not None and here.tolist() != list(range(held, held + length)):
            raise ValueError(f"cache_position: {here.tolist()}; allowed: {length} places from {held} on, after the tokens held")
        if ends is not None and (rows != 1 or int(ends[-1]) != length):
            raise ValueError(f"cu_seq_lens_q: one row that ends at {int(ends[-1])}; the pass has {rows} of {length} tokens")
        keys = said.get("cu_seq_lens_k", ends)
        if keys is not None and (ends is None or not torch.equal(ends, keys)):
            raise ValueError("cu_seq_lens_k: not cu_seq_lens_q; queries and keys of a looped model are the same tokens")
    documents = said.get("seq_idx")
    if ends is not None:
        documents = torch.searchsorted(ends[1:].contiguous(), torch.arange(length, device=ends.device).to(ends), right=True)[None]
    return Words(documents, said.get("num_items_in_batch"), said.get("shift_labels"))
