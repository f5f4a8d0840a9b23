"""`lw.trace`: what goes on inside a pass, as numbers per place (step and layer, and head) gathered while it runs.

No attention map outlives its layer and no residual outlives the next step, so that the memory of a trace does not grow with
depth; only the numbers do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import index
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from loopwright.analysis.trace.collect import (
    AttentionStatistics,
    Capture,
    Collector,
    EntropyStatistics,
    FixedPointStatistics,
    LensStatistics,
    PartStatistics,
    ResidualStatistics,
    Sheet,
    View,
    Watcher,
)
from loopwright.analysis.trace.edit import check_edit
from loopwright.analysis.trace.places import Places
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.model.span import place_tokens
from loopwright.model.taps import Tap
from loopwright.plot import Shown
from loopwright.schema import suggest

if TYPE_CHECKING:
    from rich.table import Table

DEPTH = 128  # steps of a looped model, where none are asked for
COLLECTS = ("attention", "residual", "entropy", "lens", "fixed")
TOKEN_NAMES = ("token_cosine", "token_distance", "state_token_cosine")  # their last axis is the tokens of a row


@dataclass(frozen=True)
class Trace(Shown):
    """The numbers of a pass: `values` by name, [B, places, …] or [B, steps, …]; `captured` tensors likewise; `valid` [B, T].

    Names of the second kind begin with "state_" or "answer_". A number that does not exist is NaN: the change since the step
    before at the first step, say.
    """

    places: Places
    input_ids: Tensor
    valid: Tensor
    values: Mapping[str, Tensor]
    captured: Mapping[str, Tensor] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Names and shapes: the numbers themselves would fill a notebook."""
        rows, length = self.valid.shape
        kinds = {"values": self.values, "captured": self.captured}
        shapes = {name: ", ".join(f"{key} {list(x.shape)}" for key, x in held.items()) for name, held in kinds.items()}
        said = [f"{name}: {shape}" for name, shape in shapes.items() if shape]
        return f"Trace({'; '.join([f'{rows} × {length} tokens, {self.places.steps} steps', *said])})"

    def table(self) -> Table:
        """Returns names, shapes and means of the numbers that exist, as a rich table."""
        from rich.table import Table

        rows, length = self.valid.shape
        table = Table("name", "shape", "mean", title=f"{rows} × {length} tokens, {self.places.steps} steps", title_justify="left")
        for name, x in self.values.items():
            table.add_row(name, str(list(x.shape)), f"{float(x.float().nanmean()):.4g}")
        for name, x in self.captured.items():
            table.add_row(f"captured {name}", str(list(x.shape)), "")
        return table

    def core(self, name: str) -> Tensor:
        """Returns a number of the core's layers by step and layer, [B, steps, layers, …]."""
        return self.values[name][:, self.places.looped].unflatten(1, (self.places.steps, self.places.core))

    def examples(self) -> Iterator[Trace]:
        """Yields each row as a trace of its own, without its padding."""
        for row in range(self.valid.shape[0]):
            real = self.valid[row]
            cut = {
                name: x[row : row + 1, ..., real] if name in TOKEN_NAMES else x[row : row + 1] for name, x in self.values.items()
            }
            kept = {name: x[row : row + 1] for name, x in self.captured.items()}
            yield Trace(self.places, self.input_ids[row : row + 1, real], real[real][None], cut, kept)


def trace_depth(config: LoopedConfig, depth: int | None) -> int:
    """Returns the steps of a trace: those asked for where the model can run them; else DEPTH, or as many as the model has."""
    if depth is not None or not config.is_looped:
        return config.check_depth(depth)
    ends = config.max_steps is not None and config.beyond_max_steps == "refuse"
    return min(DEPTH, config.max_steps or DEPTH) if ends else DEPTH


def check_collect(config: LoopedConfig, collect: Sequence[str]) -> None:
    """Raises where a name is none of COLLECTS, or misses another that it needs."""
    unknown = [name for name in collect if name not in COLLECTS]
    if unknown:
        raise ValueError(f"collect: unknown {unknown[0]!r}; {suggest(unknown[0], COLLECTS)}")
    if "fixed" in collect and "residual" not in collect and config.is_looped:
        raise ValueError("collect: 'fixed' compares with what 'residual' has seen; allowed: both, or neither")


def check_context(what: str, config: LoopedConfig, lengths: Iterable[int], whose: str = "the model") -> None:
    """Raises where a row has more tokens than the model's context holds."""
    limit = config.max_position_embeddings
    for number, length in enumerate(lengths, start=1):
        if length > limit:
            raise ValueError(f"{what}: number {number} has {length} tokens; {whose}'s context holds {limit}")


def check_lengths(config: LoopedConfig, rows: Sequence[Sequence[int]], whose: str = "the model") -> None:
    """Raises where a prompt has no token, one that the model does not know, or more than its context holds; names the model so."""
    if not rows:
        raise ValueError("prompts: none; allowed: at least one")
    known = config.vocab_size
    for number, row in enumerate(rows, start=1):
        if not len(row):
            raise ValueError(f"prompts: number {number} has no tokens; allowed: at least one")
        wrong = [token for token in (min(row), max(row)) if not 0 <= token < known]
        if wrong:
            raise ValueError(f"prompts: number {number} holds token id {wrong[0]}; {whose} knows {known} tokens, 0 to {known - 1}")
    check_context("prompts", config, map(len, rows), whose)


def read_capture(capture: Mapping[str, Iterable[int]] | None) -> dict[str, list[int]]:
    """Returns what to capture as lists, read once; raises where it is no mapping of points to tokens."""
    try:
        tokens_by_name = {} if capture is None else {name: [index(n) for n in tokens] for name, tokens in capture.items()}
    except (AttributeError, TypeError):
        tokens_by_name = {"": []}
    if not all(tokens_by_name.values()):
        raise ValueError(f"capture: {capture!r}; allowed: points with their tokens, as {{'residual': [-1]}}")
    return tokens_by_name


def check_capture(places: Places, wanted: Mapping[str, Sequence[int]], shortest: int) -> None:
    """Raises where a point is not known, or a row of so many tokens has not the token asked for."""
    Capture(Sheet(places, View(None, torch.ones(1, shortest, dtype=torch.bool), True)), wanted)


@torch.no_grad()
def trace(
    model: LoopedForCausalLM,
    input_ids: Tensor,
    depth: int | None = None,
    *,
    attention_mask: Tensor | None = None,
    collect: Sequence[str] = COLLECTS,
    capture: Mapping[str, Sequence[int]] | None = None,
    edit: Tap | None = None,
    state_seed: int | Tensor | None = None,
) -> Trace:
    """Returns what a pass over `input_ids` [B, T] shows at each place; padding counts nowhere.

    `depth`: default 128 for a looped model, 1 for a dense one. `collect` names what to gather; "fixed" runs the steps a second
    time, to compare them with where the first time ended. `capture` keeps chosen tensors of chosen tokens, as
    {"residual": [-1]}: the last valid token. `edit` is a tap that changes what passes; the numbers are those of the edited pass.
    An edit without a place in the pass is an error, and so is a row longer than the model's context.
    """
    check_collect(model.config, collect)
    wanted = read_capture(capture)
    depth = trace_depth(model.config, depth)
    places = Places.of(model.config, depth)
    check_edit(edit, model.config, depth)
    sheet = Sheet(places, _view(model, input_ids, attention_mask))
    residual, attention = ResidualStatistics(sheet), AttentionStatistics(sheet)
    lens = LensStatistics(sheet, model) if "lens" in collect else None
    collectors: dict[str, Collector] = {"attention": attention, "residual": residual, "entropy": EntropyStatistics(sheet)}
    watched = [collectors[name] for name in collectors if name in collect]
    watched += [PartStatistics(sheet)] if "residual" in collect else []
    watched += [] if lens is None else [lens]
    watched += [Capture(sheet, wanted)] if wanted else []
    with _quiet(model):
        _run(model, input_ids, attention_mask, depth, Watcher(watched, edit), state_seed, lens)
        if "fixed" in collect and model.config.is_looped:
            fixed = FixedPointStatistics(sheet, residual.last, attention.last)
            _run(model, input_ids, attention_mask, depth, Watcher([fixed], edit), state_seed, None)
    found = {name: value.cpu() for name, value in sheet.values.items()}
    captured = {name.removeprefix("captured_"): x for name, x in found.items() if name.startswith("captured_")}
    values = {name: x for name, x in found.items() if not name.startswith("captured_")}
    return Trace(sheet.places, input_ids.cpu(), sheet.view.valid.cpu(), values, captured)


def _view(model: LoopedForCausalLM, input_ids: Tensor, attention_mask: Tensor | None) -> View:
    """Returns who sees whom in a batch of rows that can be traced; raises where it is none."""
    if not isinstance(input_ids, Tensor) or input_ids.dim() != 2 or input_ids.is_floating_point() or not input_ids.numel():
        said = f"{input_ids.dtype} of shape {tuple(input_ids.shape)}" if isinstance(input_ids, Tensor) else type(input_ids).__name__
        raise ValueError(f"input_ids: {said}; allowed: a tensor of whole numbers, a row per sequence [B, T]")
    span = place_tokens(input_ids.shape[0], input_ids.shape[1], input_ids.device, attention_mask=attention_mask)
    if attention_mask is not None and not bool(attention_mask.any(1).all()):
        raise ValueError("trace: a row of the attention_mask holds no token; allowed: at least one in each row")
    view = View.of(span, model.config.sliding_window)
    if span.length > model.config.max_position_embeddings:  # else no need to wait for the device
        check_context("input_ids", model.config, view.count.tolist())
    return view


def _run(
    model: LoopedForCausalLM,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    depth: int,
    tap: Tap,
    state_seed: int | Tensor | None,
    lens: LensStatistics | None,
) -> None:
    e, p = model.embed(input_ids, attention_mask=attention_mask, tap=tap)
    state = model.start_state(e, p, state_seed)
    for t, s in enumerate(model.unroll(e, depth, p, state=state)):
        if lens is not None:
            lens.read(s, p, t)
    model.features(s, p)  # the coda, once, as the tap sees it


@contextmanager
def _quiet(model: LoopedForCausalLM) -> Iterator[None]:
    """Runs without dropout for a while."""
    before = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(before)
