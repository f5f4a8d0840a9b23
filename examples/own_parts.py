"""Parts of your own: a per-step injection, an objective, a penalty and a data set, in one file outside the package.

loopwright train examples/own_parts.yaml --out runs/own-parts
loopwright generate runs/own-parts "abc" --import examples/own_parts.py
"""

import torch
from torch import nn

import loopwright as lw
from loopwright.parts import Alphabet, Batch, Injection, Objective, Penalty, Splits, cross_entropies, find_targets, target_features

LETTERS = Alphabet(["Ʌ", "§", *"abcdefgh"])  # padding and the end of an answer come first


@lw.register("injection", "scaled")
class Scaled(Injection):  # x = s + g_t ⊙ e, with one row of gains per step
    per_step = True

    def __init__(self, config: lw.LoopedConfig, gain: float = 1.0) -> None:
        super().__init__()
        self.gain, self.gains = gain, nn.Parameter(torch.empty(config.max_steps, config.hidden_size))

    def start(self) -> None:
        nn.init.constant_(self.gains, self.gain)

    def forward(self, s, e, step):
        return s + lw.parts.take_width(self.gains, step) * e


@lw.register("objective", "last-two")
class LastTwo(Objective):  # the mean cross-entropy of the last two steps
    def __call__(self, model, rollout):
        targets = find_targets(rollout.batch)
        features = target_features(model, rollout.states[-2:], rollout.p, targets)
        losses, _ = cross_entropies(model, features, rollout.p, targets)
        return targets.mean(losses.mean(0)), {"loss_last": targets.mean(losses[-1]).detach()}


@lw.register("penalty", "state-size")
class StateSize(Penalty):  # the mean square of the last state
    def __call__(self, model, rollout):
        return rollout.last.square().mean()


@lw.register("data", "alphabet")
class Letters:  # rows such as "cdefgh", each letter followed by the next one
    def __init__(self, length: int = 6) -> None:
        self.length = length

    def __len__(self) -> int:
        return 8

    def batch(self, indices) -> Batch:
        ids = 2 + (torch.as_tensor(indices)[:, None] + torch.arange(self.length)) % 8
        return Batch(ids, ids)

    def splits(self, folder, progress) -> Splits:
        return Splits(self, self, {"test": self}, vocab_size=len(LETTERS), tokenizer=LETTERS.tokenizer())
