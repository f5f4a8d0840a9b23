"""Log-likelihoods of continuations at many depths from one pass, which is what questions with given answers need."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import torch
from torch import Tensor

from loopwright.evaluate.sweep import Progress
from loopwright.generate.readings import check_depths
from loopwright.metrics.score import chosen
from loopwright.model.forward.selection import Answers
from loopwright.model.looped import LoopedForCausalLM
from loopwright.values import check_whole

TOKENS_AT_ONCE = {"cpu": 2**11, "cuda": 2**16}  # of a pass, padding included, where nothing is said
LOGITS_AT_ONCE = {"cpu": 2**25, "cuda": 2**29}

Pair = tuple[Sequence[int], Sequence[int]]  # context, continuation
Row = tuple[int, ...]


def score_continuations(
    model: LoopedForCausalLM,
    pairs: Sequence[Pair],
    depths: Sequence[int],
    *,
    longest: int | None = None,
    batch: int | None = None,
    progress: Progress | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns log p(continuation | context) [pairs, depths] in float64, and whether each of its tokens is the likeliest one.

    A row is context and continuation without the last token, cut on the left to `longest` tokens (the model's positions). Rows
    that several pairs share, such as those of answers of one token, are run once.

    Args:
        batch: rows in a pass; default: what fits.
    """
    wanted = check_depths(model.config, depths)
    if model.training:
        raise ValueError("score_continuations: the model is in training mode, where dropout is on; call model.eval() first")
    if batch is not None:
        check_whole("batch", batch, 1)
    owners = _rows(pairs, model.config.max_position_embeddings if longest is None else longest)
    order = sorted(owners, key=lambda row: (-len(row), row))  # rows of like length together, the most memory first
    scores = torch.zeros(len(pairs), len(wanted), dtype=torch.float64)
    greedy = torch.zeros(len(pairs), len(wanted), dtype=torch.bool)
    room = TOKENS_AT_ONCE.get(model.device.type, TOKENS_AT_ONCE["cpu"])
    first = 0
    while first < len(order):
        rows = order[first : first + (batch or max(1, room // len(order[first])))]
        first += len(rows)
        places = [place for row in rows for place in owners[row]]
        scores[places], greedy[places] = _score(model, rows, [[pairs[place][1] for place in owners[row]] for row in rows], wanted)
        if progress is not None:
            progress(first, len(order))
    return scores, greedy


def _rows(pairs: Sequence[Pair], longest: int) -> dict[Row, list[int]]:
    """Returns the pairs of each distinct row by their places."""
    owners: dict[Row, list[int]] = {}
    for place, (context, continuation) in enumerate(pairs):
        if not context or not 1 <= len(continuation) <= longest:
            raise ValueError(
                f"pair {place}: {len(context)} tokens of context and {len(continuation)} to score; "
                f"allowed: at least one of each, and at most {longest} to score"
            )
        owners.setdefault((*context, *continuation)[-longest - 1 : -1], []).append(place)
    return owners


@torch.no_grad()
def _score(
    model: LoopedForCausalLM, rows: Sequence[Row], answers: Sequence[Sequence[Sequence[int]]], depths: list[int]
) -> tuple[Tensor, Tensor]:
    """Returns scores and greediness of the answers of some rows, in order, from one pass."""
    width = len(rows[0])
    # what stands behind a row cannot change what stands before it
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=model.device)
    at: list[tuple[int, int]] = []  # row and position that the head reads
    asked: list[tuple[int, int, int]] = []  # place in `at`, token, answer
    for number, (row, tokens) in enumerate(zip(rows, answers, strict=True)):
        end = len(at) + max(map(len, tokens))
        at += [(number, position) for position in range(len(row) + len(at) - end, len(row))]
        for answer, token in enumerate(tokens, start=sum(map(len, answers[:number]))):
            asked += [(end - len(token) + i, one, answer) for i, one in enumerate(token)]
    asked.sort()
    count = sum(map(len, answers))
    scores = torch.zeros(count, len(depths), dtype=torch.float64)
    misses = torch.zeros(count, len(depths), dtype=torch.long)
    where, token, answer = torch.tensor(asked).T
    picked = torch.tensor(at, device=model.device).T
    e, p = model.embed(ids)
    column, start = 0, model.start_state(e, p)
    answered = Answers(model, e, p, start)
    for depth, s in enumerate(model.unroll(e, depths[-1], p, state=start), start=1):
        answered.take(s)
        if depth == depths[column]:
            # the head is most of a small model, and only tokens of answers need it
            each, right = _read(model, answered.features()[picked[0], picked[1]], p, where.tolist(), token.to(model.device))
            scores[:, column].index_add_(0, answer, each)
            misses[:, column].index_add_(0, answer, (~right).long())
            column += 1
    return scores, misses == 0


def _read(model: LoopedForCausalLM, features: Tensor, p: object, where: list[int], token: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the log-probability of each token asked for, and whether it is the likeliest one at its place, on the CPU."""
    room = LOGITS_AT_ONCE.get(model.device.type, LOGITS_AT_ONCE["cpu"])
    size = max(1, room // model.config.vocab_size)
    each, right = [], []
    for first in range(0, len(features), size):
        logits = model.head(features[first : first + size], p)  # type: ignore[arg-type]
        logs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        begin, end = bisect_left(where, first), bisect_left(where, first + size)
        places = torch.tensor(where[begin:end], device=features.device) - first
        scores = logs[places, token[begin:end]]
        each.append(scores.double().cpu())
        right.append((chosen(logs)[places] == token[begin:end]).cpu())
    return torch.cat(each), torch.cat(right)
