"""Equalities over tokens: rows, pads, chunks, caches and the future must not change what a position answers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin

from loopwright.checking.probes import NotOfferedError, Probe, Tally, Verdict
from loopwright.generation.generation_config import PLAIN

STRICT = 0.1  # of the tolerance, where tensors have the same shape: only experts with few or many tokens round differently


def finite_logits(probe: Probe) -> Verdict:
    """Every logit of an ordinary pass is a finite number."""
    logits = probe.logits(probe.ids(2))
    wrong = int((~logits.isfinite()).sum())
    depth = "" if probe.depth is None else f", depth {probe.depth}"
    what = f"{tuple(logits.shape)} {str(logits.dtype).removeprefix('torch.')}{depth}"
    if wrong:
        return Verdict(False, f"{wrong} of {logits.numel()} logits are not finite; {what}")
    return Verdict(True, f"{what}; largest {float(logits.abs().max()):.3g}")


def batch_invariance(probe: Probe) -> Verdict:
    """A row in a batch = the row alone."""
    tally, ids = probe.tally(), probe.ids(3)
    together = probe.logits(ids)
    for row in range(len(ids)):
        tally.close(f"row {row} in a batch", together[row : row + 1], probe.logits(ids[row : row + 1]))
    return tally.verdict()


def causality(probe: Probe) -> Verdict:
    """Past logits = past logits whatever comes after, in evaluation and training mode; and = those of the prefix alone."""
    tally, ids = probe.tally(), probe.ids(2)
    length = ids.shape[1]
    starts = (1, length // 2, length - 1)
    for name, options in _answers(probe).items():
        _change_future(probe, tally, name, ids, starts, options)
    want = probe.logits(ids)
    for start in starts:
        tally.close(f"the first {start} tokens alone", probe.logits(ids[:, :start]), want[:, :start])
    with probe.training():
        if torch.equal(probe.logits(ids), probe.logits(ids)):
            _change_future(probe, tally, "training mode", ids, starts, {})
        else:
            tally.notes.append("training mode left out: it gives other logits each time, under one seed")
    return tally.verdict()


def _answers(probe: Probe) -> dict[str, dict[str, Any]]:
    """Returns the ways in which a model in evaluation mode can answer, each with its options."""
    learned = probe.own is not None and probe.own.halting.mixes is not None
    return {"evaluation mode": {}, **({"select='expected'": {"select": "expected"}} if learned else {})}


def _change_future(probe: Probe, tally: Tally, mode: str, ids: Tensor, starts: tuple[int, ...], options: dict[str, Any]) -> None:
    want = probe.logits(ids, options=options)
    for start in starts:
        got = probe.logits(probe.changed(ids, start), options=options)
        where = f"{mode}, tokens from {start} on changed"
        tally.hold(f"{mode}: the tokens from {start} on never reach the logits", not torch.equal(got[:, start:], want[:, start:]))
        if probe.own is not None:  # no shape depends on the tokens here, so that even a leak below rounding shows
            tally.same(where, got[:, :start], want[:, :start])
        else:
            tally.close(where, got[:, :start], want[:, :start], times=STRICT)


def left_padding(probe: Probe) -> Verdict:
    """A row after masked pads = the row alone."""
    return _padding(probe, [slice(pads, None) for pads in _pads(probe)])


def right_padding(probe: Probe) -> Verdict:
    """A row before masked pads = the row alone, at its own positions."""
    return _padding(probe, [slice(0, probe.length - pads) for pads in _pads(probe)])


def _pads(probe: Probe) -> tuple[int, ...]:
    return (0, 3, probe.length // 2)


def _padding(probe: Probe, spans: list[slice]) -> Verdict:
    """Compares each row of a batch, real only in its span, with that span alone."""
    probe.need("attention_mask")
    tally, ids = probe.tally(), probe.ids(len(spans))
    mask = torch.zeros_like(ids)
    for row, span in enumerate(spans):  # the pads are ordinary tokens: only the mask tells them apart
        mask[row, span] = 1
    together = probe.logits(ids, mask=mask)
    for row, span in enumerate(spans):
        alone = probe.logits(ids[row : row + 1, span])
        tally.close(f"row of {alone.shape[1]} tokens, padded to {probe.length}", together[row : row + 1, span], alone)
    return tally.verdict()


def cached(probe: Probe) -> Verdict:
    """A prefill, then token by token with the cache = one uncached pass."""
    ids = probe.ids(2)
    prefill = ids.shape[1] // 2
    return _in_chunks(probe, ids, [prefill] + [1] * (ids.shape[1] - prefill), "token by token")


def chunked_prefill(probe: Probe) -> Verdict:
    """A prefill in several chunks of several tokens = one uncached pass."""
    ids = probe.ids(2, seed=2)
    sizes = [3, 2, ids.shape[1] - 5]
    return _in_chunks(probe, ids, sizes, f"chunks of {', '.join(map(str, sizes))}")


def _in_chunks(probe: Probe, ids: Tensor, sizes: list[int], name: str) -> Verdict:
    tally = probe.tally()
    tally.close(name, probe.cached_logits(ids, sizes), probe.logits(ids))
    return tally.verdict()


def generation(probe: Probe) -> Verdict:
    """Greedy `generate` = the largest logit of repeated full passes, for prompts of unequal length in one batch."""
    model = probe.model
    if not isinstance(model, GenerationMixin):
        raise NotOfferedError("the model has no transformers generate")
    new = 4
    ids = probe.ids(2, probe.length - new)
    mask = torch.ones_like(ids)
    if probe.offers("attention_mask"):
        mask[1, :3] = 0
    depth: dict[str, Any] = {} if probe.depth is None else {"depth": probe.depth}
    with_prompt = model.generate(
        input_ids=ids, attention_mask=mask, max_new_tokens=new, pad_token_id=0, use_cache=True, **PLAIN, **depth
    )  # fmt: skip
    said = with_prompt[:, ids.shape[1] :]
    stops = getattr(model.generation_config, "eos_token_id", None)
    ends = set(stops if isinstance(stops, list) else [stops])
    tally = probe.tally()
    for row in range(len(ids)):
        _follow(probe, tally, row, ids[row][mask[row] == 1], said[row].tolist(), ends)
    if tally.failures:
        return tally.verdict()
    return Verdict(True, f"{said.numel()} tokens as by full passes, prompts of {mask.sum(1).tolist()} tokens in one batch")


def _follow(probe: Probe, tally: Tally, row: int, prompt: Tensor, said: list[int], ends: set[int | None]) -> None:
    """Compares the tokens one row was given with full passes over what stood before them, ties up to rounding."""
    for place, token in enumerate(said):
        last = probe.logits(prompt[None])[0, -1]
        if float(last.max() - last[token]) > tally.allowed(last):
            best = int(last.argmax())
            tally.hold(f"row {row}, new token {place}: generate says {token}, a full pass says {best}", False)
            return
        if token in ends:
            return
        prompt = torch.cat([prompt, prompt.new_tensor([token])])
