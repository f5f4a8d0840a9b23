"""What a model answers at many depths, from one pass: losses and exactness of rows, and the next token that each step would give.

Of rows only the state at hand is alive: memory does not grow with the depth. One pass gives the bits that a pass per depth would.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

import torch
from torch import Tensor

from loopwright.generation.generation_config import PLAIN
from loopwright.metrics.score import IGNORED, Metric, exact_rows, token_losses
from loopwright.model.backbone import StepRunner
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.model.passes import Answers, choosable, rules_of
from loopwright.model.room import check_room

PROBED = 256  # tokens of a row that are enough to see whether a model sees the future
SHOWN_TOKENS = 3
KEPT = 5  # float32 tables of steps × vocabulary: logits one by one and stacked, log-probabilities, probabilities, one between


class ReadRows(Protocol):
    """Rows of tokens with labels: the input ids where a token is predicted, else −100."""

    @property
    def input_ids(self) -> Tensor:
        """The tokens [B, T]."""

    @property
    def labels(self) -> Tensor:
        """What is predicted [B, T], unshifted."""

    @property
    def attention_mask(self) -> Tensor | None:
        """Which tokens are real [B, T]; None where all are."""

    @property
    def segment_ids(self) -> Tensor | None:
        """The document of each token [B, T]; None where each row is one."""


@dataclass(frozen=True)
class Reading:
    """The answers of a batch at one depth, a number per row [B]: summed loss (float64), targets, whether all are right.

    `change` is ‖s − s′‖ / ‖s′‖ of the last step, from s′ to s, over the tokens that a target of the row can see, where asked for;
    `measured` holds a number per row [B] of each metric asked for, `of_documents` the summed loss of each document [U] where it was
    said which tokens are whose.
    """

    depth: int
    loss: Tensor
    targets: Tensor
    exact: Tensor
    change: Tensor | None = None
    measured: Mapping[str, Tensor] = field(default_factory=dict)
    of_documents: Tensor | None = None


def readings(
    model: LoopedForCausalLM,
    batch: ReadRows,
    depths: Iterable[int] | None = None,
    *,
    change: bool = False,
    step: StepRunner | None = None,
    metrics: Mapping[str, Metric] | None = None,
    owners: Tensor | None = None,
) -> Iterator[Reading]:
    """Yields the reading of a batch at each depth, ascending, from one pass without gradients; a dense model has one depth.

    What answers is what the model's own read-out (`config.read_out`) makes of the steps up to there. `change` measures the state's
    last step too; `step` runs in the place of the model's own (compiled, for instance); `owners` says of each token [B, T] which
    document it is of, by numbers from 0, if losses are to be summed by document as well.
    """
    wanted = check_depths(model.config, depths)
    if model.training:
        raise ValueError("readings: the model is in training mode, where dropout is on; call model.eval() first")
    return _readings(model, batch, wanted, change, step, metrics or {}, owners)


@torch.no_grad()  # of a generator it holds while the generator runs, not where the readings are used
def _readings(
    model: LoopedForCausalLM,
    batch: ReadRows,
    depths: list[int],
    change: bool,
    step: StepRunner | None,
    metrics: Mapping[str, Metric],
    owners: Tensor | None,
) -> Iterator[Reading]:
    e, p = model.embed(batch.input_ids, attention_mask=batch.attention_mask, segment_ids=batch.segment_ids)
    before = model.start_state(e, p)
    seen = _seen_by_targets(batch) if change else None
    wanted, answers = set(depths), Answers(model, e, p, before)
    for depth, s in enumerate(model.unroll(e, depths[-1], p, state=before, step=step), start=1):
        answers.take(s)
        if depth in wanted:
            moved = None if seen is None else _relative_change(before, s, seen)
            yield _read(answers.logits(), batch.labels, depth, moved, metrics, owners)
        before = s


def _read(
    logits: Tensor, labels: Tensor, depth: int, change: Tensor | None, metrics: Mapping[str, Metric], owners: Tensor | None
) -> Reading:
    each, asked = token_losses(logits, labels)
    loss, whose = each.sum(1, dtype=torch.float64), None
    if owners is not None:  # on the CPU, where sums over documents come in one order
        whose = torch.zeros(int(owners.max()) + 1, dtype=torch.float64)
        whose.index_add_(0, owners[:, 1:].flatten(), each.double().cpu().flatten())
    measured = {name: metric(logits, labels) for name, metric in metrics.items()}
    # of logits that are no numbers some token is still the largest: such an answer is never right
    return Reading(depth, loss, asked.sum(1), exact_rows(logits, labels) & loss.isfinite(), change, measured, whose)


def _seen_by_targets(batch: ReadRows) -> Tensor:
    """Returns which real tokens stand before the last target of their row [B, T, 1]: later ones cannot change an answer."""
    asked = torch.nn.functional.pad(batch.labels[:, 1:] != IGNORED, (0, 1))
    seen = asked.flip(1).long().cummax(1).values.flip(1).bool()
    return (seen if batch.attention_mask is None else seen & batch.attention_mask.bool())[..., None]


def _relative_change(before: Tensor, after: Tensor, seen: Tensor) -> Tensor:
    # padding is cut out, not multiplied by zero: what is not finite there must not count
    before, after = (torch.where(seen, x.float(), 0.0).flatten(1) for x in (before, after))
    return (after - before).norm(dim=1) / before.norm(dim=1)


@torch.no_grad()
def sees_future(model: LoopedForCausalLM, ids: Tensor, depth: int | None = None) -> bool:
    """Returns whether a part says that it reads later tokens, or what rows [B, T] answer in their first half changes with the
    second: two passes, where the causality check of `check` takes many. The model's mode comes back as it was."""
    if model.leaks_future or not ids.numel():
        return model.leaks_future
    ids = ids[:, :PROBED]
    half = ids.shape[1] // 2
    other = torch.cat([ids[:, :half], (ids[:, half:] + 1) % model.config.vocab_size], 1)
    # a read-out that the model cannot give is refused elsewhere, in words of its own
    select = model.config.read_out if model.config.read_out in rules_of(model.halting) else "last"
    training, options = model.training, {"use_cache": False, "depth": depth if model.config.is_looped else None, "select": select}
    model.eval()
    try:
        first, second = (model(rows, **options).logits[:, :half] for rows in (ids, other))
    finally:
        model.train(training)
    # of what is no number nothing is said here
    return bool(first.isfinite().all() & second.isfinite().all()) and not torch.equal(first, second)


def check_depths(config: LoopedConfig, depths: Iterable[int] | None = None) -> list[int]:
    """Returns the depths in ascending order, each once; the model's own where none are given. A dense model has depth 1 only."""
    if depths is None:
        return [config.check_depth(None)]
    asked = sorted(set(depths))
    if not asked:
        raise ValueError("depths: none are given; allowed: at least one whole number of at least 1")
    if not config.is_looped and asked == [1]:
        return asked
    config.check_depth(asked[-1])  # first: of a dense model it is the one that is wrong
    config.check_depth(asked[0])
    return asked


def can_decode(batch: ReadRows) -> bool:
    """Returns whether the targets of each row are its tokens and follow one another: a chat may have several answers, a task its
    answers in the place of the questions."""
    asked = batch.labels[:, 1:] != IGNORED
    begins = asked & ~torch.nn.functional.pad(asked[:, :-1], (1, 0))
    from_rows = (batch.labels == batch.input_ids)[:, 1:] | ~asked
    return batch.segment_ids is None and bool((begins.sum(1) == 1).all() & from_rows.all())


def decode_exact(
    model: LoopedForCausalLM, batch: ReadRows, depth: int | None, *, eos_id: int | None, pad_id: int | None = None
) -> Tensor:
    """Returns whether greedy decoding from each row's prompt gives exactly its targets [B], token by token through a cache.

    The prompt is what stands before the first target; the targets that follow are the answer, up to and including the end
    token. For a causal model that is what `exact_rows` finds in one pass. Prompts are padded on the left with `pad_id`
    (the end token where it is None).
    """
    if batch.segment_ids is not None:
        raise ValueError("decode_exact: the rows hold several documents (segment_ids); allowed: one prompt and answer per row")
    prompts, answers = split_rows(batch)
    fill = next((i for i in (pad_id, eos_id) if i is not None), 0)
    width, length = max(map(len, prompts)), max(map(len, answers))
    ids, mask = (x.to(model.device) for x in left_padded(prompts, width, fill))
    # the folder's own generation settings (sampling, penalties, lengths) must not reach an exact comparison
    arguments = PLAIN | {"max_new_tokens": length, "eos_token_id": eos_id, "pad_token_id": fill}
    if model.config.is_looped and depth is not None:
        arguments["depth"] = depth
    produced = cast(Tensor, model.generate(ids, attention_mask=mask, **arguments))[:, width:].cpu()
    produced = torch.nn.functional.pad(produced, (0, length - produced.shape[1]), value=fill)
    wanted, asked = _right_padded(answers, length)
    return ((produced == wanted) | ~asked).all(1).to(batch.input_ids.device)


def split_rows(batch: ReadRows) -> tuple[list[Tensor], list[Tensor]]:
    """Returns the real tokens before the first target, and the targets, of each row; on the CPU, where looking is cheap."""
    tokens, labels = batch.input_ids.cpu(), batch.labels.cpu()
    valid = torch.ones_like(labels) if batch.attention_mask is None else batch.attention_mask.cpu()
    prompts, answers = [], []
    for row, (ids, wanted, real) in enumerate(zip(tokens, labels, valid.bool(), strict=True)):
        places = (wanted[1:] != IGNORED).nonzero()[:, 0] + 1  # nothing stands before the first token: it is never predicted
        if not len(places) or int(places[-1] - places[0]) + 1 != len(places):
            raise ValueError(f"decode_exact: row {row} has {len(places)} targets with gaps or none; allowed: one unbroken answer")
        if bool((ids[places] != wanted[places]).any()):
            raise ValueError(f"decode_exact: the targets of row {row} are not its tokens; allowed: an answer that follows a prompt")
        first = int(places[0])
        prompts.append(ids[:first][real[:first]])
        answers.append(wanted[places])
    return prompts, answers


def left_padded(rows: Sequence[Tensor], width: int, fill: int) -> tuple[Tensor, Tensor]:
    """Returns prompts of different lengths as one batch [B, width], padded on the left, and its mask."""
    ids = torch.stack([torch.nn.functional.pad(row, (width - len(row), 0), value=fill) for row in rows])
    lengths = torch.tensor([len(row) for row in rows], device=ids.device)
    return ids, (torch.arange(width, device=ids.device) >= width - lengths[:, None]).long()


def _right_padded(rows: Sequence[Tensor], width: int) -> tuple[Tensor, Tensor]:
    ids = torch.stack([torch.nn.functional.pad(row, (0, width - len(row))) for row in rows])
    lengths = torch.tensor([len(row) for row in rows], device=ids.device)
    return ids, torch.arange(width, device=ids.device) < lengths[:, None]


@dataclass(frozen=True)
class StepGuess:
    """The next token as read out after one step (counted from 1): likeliest tokens first.

    `entropy` is that of the whole distribution and `divergence` is KL(this step ‖ last step), both in nats.
    """

    step: int
    tokens: tuple[int, ...]
    probabilities: tuple[float, ...]
    entropy: float
    divergence: float


@torch.no_grad()
def next_token_by_depth(
    model: LoopedForCausalLM,
    input_ids: Tensor,
    depth: int | None = None,
    *,
    top: int = SHOWN_TOKENS,
    state_seed: int | None = None,
) -> list[StepGuess]:
    """Returns one guess per step for the token after `input_ids` ([T] or [1, T]); a dense model gives a single one."""
    ids = input_ids[None] if input_ids.dim() == 1 else input_ids
    if ids.dim() != 2 or ids.shape[0] != 1:
        raise ValueError(f"next_token_by_depth: input_ids of shape {tuple(input_ids.shape)}; allowed: one row, [T] or [1, T]")
    if not 1 <= top <= model.config.vocab_size:
        raise ValueError(f"next_token_by_depth: top {top}; allowed: 1 to {model.config.vocab_size}, the vocabulary")
    steps = model.config.check_depth(depth)
    what = f"next_token_by_depth: the logits of {steps:,} steps"
    check_room(what, KEPT * 4 * steps * model.config.vocab_size, model.device, "take a lower depth")
    e, p = model.embed(ids)
    start = model.start_state(e, p, state_seed)
    answers, read = Answers.of_steps(model, e, p, start), []
    for s in model.unroll(e, steps, p, state=start):
        answers.take(s)
        read.append(model.head(answers.features()[:, -1:], p)[0, -1])
    logits = torch.stack(read).float()
    wrong = [t + 1 for t, row in enumerate(choosable(logits).tolist()) if not row]
    if wrong:
        raise ValueError(
            f"next_token_by_depth: logits are not finite after {len(wrong)} of {steps} steps, first after step {wrong[0]}, or "
            "all the same; `loopwright check` looks for the cause (weights that are NaN, or values too large for the dtype)"
        )
    log_probs = logits.log_softmax(-1)
    probs = log_probs.exp()
    entropy = -(probs * log_probs).sum(-1)
    divergence = (probs * (log_probs - log_probs[-1])).sum(-1)
    best = probs.topk(top)
    return [
        StepGuess(t + 1, tuple(best.indices[t].tolist()), tuple(best.values[t].tolist()), entropy[t].item(), divergence[t].item())
        for t in range(len(probs))
    ]
