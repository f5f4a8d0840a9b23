"""How deep and how far to draft: chosen by the expected speed-up at the acceptance that was measured, and adapted while running.

A round drafts k − 1 tokens at depth r and verifies k together, steps r to T. With acceptance a it gives E = (1 − a^k)/(1 − a)
tokens. In core passes it costs k (r + c) + T − r + c, where c is what prelude, coda and head cost; plain decoding pays T + c. The
tokens are those of plain decoding whatever is chosen.
"""

from __future__ import annotations

import torch

from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.layers import Block

AUTO = "auto"
MOST_TOKENS = 8  # that one verification covers
PRIOR, WEIGHT = 0.9, 2.0  # the acceptance that a depth is believed to have, as if so many drafts had shown it: each gets its trial
FORGETTING = 0.98  # of what was seen, by each round: texts change, and a depth that was given up is tried again


def speed_up(acceptance: float, draft_depth: int, tokens: int, depth: int, cost: float) -> float:
    """Returns tokens per second over those of plain decoding, by the formula."""
    a, k, r = acceptance, tokens, draft_depth
    expected = float(k) if a >= 1 else (1 - a**k) / (1 - a)
    return expected * (depth + cost) / (k * (r + cost) + depth - r + cost)


def edge_cost(model: LoopedForCausalLM) -> float:
    """Returns what prelude, coda and head cost, in core passes: by their weights, which decoding must read."""
    config = model.config
    with torch.device("meta"):  # those of the model may be quantised: packed, or none that can be counted
        block = sum(p.numel() for p in Block(config).parameters())
    edges = (config.prelude_layers + config.coda_layers) * block + config.vocab_size * config.hidden_size
    return edges / (config.core_layers * block)


def draft_depths(depth: int) -> tuple[int, ...]:
    """Returns the depths that drafts may have: powers of two below the depth that verifies them."""
    return tuple(2**i for i in range(depth.bit_length()) if 2**i < depth)


class DraftChoice:
    """Picks draft depth and length of each round for one depth, and learns from what became of the drafts."""

    def __init__(self, model: LoopedForCausalLM, depth: int) -> None:
        self.depth, self.cost = depth, edge_cost(model)
        self.drafted = dict.fromkeys(draft_depths(depth), 0.0)
        self.accepted = dict(self.drafted)

    def acceptance(self, draft_depth: int) -> float:
        """Returns the share of drafts that held, the prior counted in."""
        return (self.accepted[draft_depth] + PRIOR * WEIGHT) / (self.drafted[draft_depth] + WEIGHT)

    def choose(self, most: int = MOST_TOKENS) -> tuple[int | None, int]:
        """Returns the draft depth and the tokens of the next round; (None, 1) where plain decoding is faster."""
        options = [(r, k) for r in self.drafted for k in range(2, most + 1)]
        gains = {(r, k): speed_up(self.acceptance(r), r, k, self.depth, self.cost) for r, k in options}
        best = max(gains, key=lambda pair: gains[pair], default=(0, 1))
        return best if gains.get(best, 0.0) > 1 else (None, 1)

    def learn(self, draft_depth: int | None, drafted: int, accepted: int) -> None:
        """Counts a round: the drafts up to the first that did not hold were tried, those after it were not."""
        for counts in (self.drafted, self.accepted):
            for r in counts:
                counts[r] *= FORGETTING
        if draft_depth is not None:
            self.drafted[draft_depth] += min(accepted + 1, drafted)
            self.accepted[draft_depth] += accepted
