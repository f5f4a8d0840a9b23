"""What the scheduler knows of a request in flight, of tokens that were drawn, and of all that was run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from loopwright.generation.constraints import GrammarState
from loopwright.generation.prefix import KeptPrefix
from loopwright.generation.request import Request
from loopwright.generation.sampling import TokenCounts
from loopwright.generation.scores import Ranked, Scores
from loopwright.model.keys.pool import Row

if TYPE_CHECKING:
    from loopwright.generation.mixed_depth import StateHistory


@dataclass(eq=False)
class Running:
    """One request in a row: how far its prompt and its present token are."""

    request: Request
    row: Row
    slot: int  # its place in the tensors of all rows
    steps: int
    counts: TokenCounts | None
    grammar: GrammarState | None = None  # where the answer is constrained: after all tokens that are drawn
    weights: int = 0  # their version when the request was admitted
    prefilled: int = 0
    drawn: int = 0  # tokens of the answer, on the device
    t: int = 0
    phase: str = "prefill"  # then "embed", "core" and again "embed"; "drained" once the last token is drawn
    history: StateHistory | None = None  # where tokens are not all equally deep
    passed: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # halting value and state of each step of the present token
    memory: dict[str, Any] = field(default_factory=dict)  # of the exit rule, about the present token
    drafts: list[Tensor] = field(default_factory=list)  # tokens that are not verified yet, on the device
    step_candidates: list[Ranked] = field(default_factory=list)  # after each step of the present token, where asked
    draft_depth: int | None = None  # of this round, None where it drafts nothing
    draft_tokens: int = 1  # that this round verifies
    work: int = 0  # steps of single tokens, those of earlier tokens included

    @property
    def base(self) -> int:
        """The tokens before the first one that is not verified."""
        return len(self.request.options.prompt) + self.drawn - 1

    @property
    def offset(self) -> int:
        """The tokens before the present one; of the prompt, where that is not all run."""
        return self.prefilled if self.in_prompt else self.base + len(self.drafts)

    @property
    def in_prompt(self) -> bool:
        """Whether there are prompt tokens to be prefilled."""
        return not self.drawn and self.prefilled < self.to_prefill

    @property
    def answers_next(self) -> bool:
        """Whether a token of the answer follows the present one: it is the prompt's last, or behind the prompt."""
        return self.prefilled + 1 >= self.to_prefill

    @property
    def to_prefill(self) -> int:
        """The prompt tokens that the prefill runs; where the last one may leave early, it comes after."""
        return len(self.request.options.prompt) - (0 if self.history is None else 1)

    @property
    def at_end(self) -> bool:
        """Whether the token that is handed over next is the one with which the grammar of the answer has ended."""
        return self.grammar is not None and self.grammar.ended and len(self.request.tokens) + 1 == self.grammar.taken

    @property
    def held(self) -> KeptPrefix:
        """What the row has run, for requests that begin alike."""
        options = self.request.options
        return KeptPrefix((options.depth, options.state_seed, self.weights), (*options.prompt, *self.request.tokens), self.row)

    @property
    def drafting(self) -> bool:
        """Whether the present token is read out at the draft's depth, to go on from there."""
        left = self.request.options.max_new_tokens - self.drawn
        return self.draft_depth is not None and len(self.drafts) + 1 < min(self.draft_tokens, left)

    @property
    def draws_largest(self) -> bool:
        """Whether its next token is the largest logit and nothing else is asked about it: a captured tick draws it."""
        options = self.request.options
        asked = options.sampling.changes_scores or options.logprobs or options.constraint or options.step_tokens
        return not asked and self.drawn >= max(options.min_new_tokens, options.min_before_eos)

    @property
    def limit(self) -> int:
        """The steps after which the present token is read out at the latest."""
        return self.draft_depth or self.steps if self.drafting else self.steps


@dataclass
class EngineStats:
    """What was run, in row-steps and passes."""

    ticks: int = 0
    row_steps: int = 0
    token_steps: int = 0  # the steps of earlier tokens that came along included
    prefill_tokens: int = 0
    admitted: int = 0
    drawn: int = 0  # tokens
    verified: int = 0  # passes that verified drafts
    drafted: int = 0
    accepted: int = 0
    tried: int = 0  # drafts up to the first of a round that did not hold
    rounds: dict[tuple[int, int], int] = field(default_factory=dict)  # of drafts, by their depth and the tokens verified


def pinned(table: Sequence[Any], device: torch.device) -> Tensor:
    """Returns numbers on the host, on their way to a device: from pinned memory a copy waits for nothing, and torch does not give
    the memory away again before the copy is done."""
    # the host is named, since the caller may have made another device the default
    return torch.tensor(table, device="cpu", pin_memory=device.type == "cuda")


class AsyncHostCopy:
    """Tensors on their way to the host, as they are now; the device goes on meanwhile."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = [tensor.to("cpu", non_blocking=True, copy=True) for tensor in tensors]
        self.arrived = torch.cuda.Event() if tensors[0].is_cuda else None
        if self.arrived is not None:
            self.arrived.record(torch.cuda.current_stream(tensors[0].device))

    def read(self) -> list[list[Any]]:
        """Waits for them, and for nothing that was queued since."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return [tensor.tolist() for tensor in self.tensors]


class HostValues:
    """Values that are on the host already."""

    def __init__(self, *columns: list[Any]) -> None:
        self.columns = list(columns)

    def read(self) -> list[list[Any]]:
        """Returns them."""
        return self.columns


@dataclass(eq=False)
class SampledTokens:
    """Tokens that were drawn and not yet read, with whether their logits say anything."""

    rows: list[Running]
    drawn: AsyncHostCopy | HostValues
    scores: Scores | None
    depths: list[int]
    step_candidates: list[list[Ranked]] | None = None
    places: list[int] | None = None  # where they stand among those that were fetched; None: in order

    def read(self) -> list[list[Any]]:
        """Returns the token of each row, and whether it could be chosen."""
        columns = self.drawn.read()
        return columns if self.places is None else [[column[place] for place in self.places] for column in columns]
