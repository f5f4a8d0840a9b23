"""What steps and neurons say to the vocabulary: entropy, change and flips of the predictions that are read out step by step, and
what single neurons and single large numbers of the residual stream do. Logits are […, V]; logarithms are natural.

The effect of an MLP neuron on the logits is y = W_U (g ⊙ w_out), g the gains of the norms that its output passes: one number per
token of the vocabulary. Few tokens far from the rest make its kurtosis large; where they are raised the skew is positive and
the neuron predicts, where they are lowered it is negative and the neuron suppresses (after Gurnee et al. 2024). Massive
activations are single numbers of the residual stream that dwarf all others (after Sun et al. 2024).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopwright.metrics.score import wide


@dataclass(frozen=True)
class LensReading:
    """One step's predictions in numbers, each […]: `answer` (long) is the likeliest token and `flipped` says that it changed.

    At the first step there is nothing to compare with: `divergence` is NaN and `flipped` false.
    """

    entropy: Tensor
    divergence: Tensor
    answer: Tensor
    flipped: Tensor


def lens_reading(logits: Tensor, before: Tensor | None = None) -> LensReading:
    """Returns the numbers of a step, given its logits and those of the step before (None at the first)."""
    entropy, answer = prediction_entropy(logits), logits.argmax(-1)
    if before is None:
        return LensReading(entropy, torch.full_like(entropy, torch.nan), answer, torch.zeros_like(answer, dtype=torch.bool))
    return LensReading(entropy, prediction_divergence(logits, before), answer, answer != before.argmax(-1))


def prediction_entropy(logits: Tensor) -> Tensor:
    """Returns −Σ_v p_v log p_v with p = softmax(logits), in nats, in [0, log V]."""
    return torch.special.entr(_log_p(logits).exp()).sum(-1)


def prediction_divergence(now: Tensor, before: Tensor) -> Tensor:
    """Returns KL(now ‖ before) = Σ_v p_v (log p_v − log q_v), in nats; 0 where nothing changed, infinite where q rules p out."""
    p, q = _log_p(now), _log_p(before)
    # a token that p rules out adds nothing, whatever q says of it
    return torch.where(p == -torch.inf, 0, p.exp() * (p - q)).sum(-1).clamp(min=0)


def answer_flips(answers: Tensor) -> Tensor:
    """Returns where the answer of a step is not that of the step before, for answers [S, …]: [S − 1, …], booleans."""
    return answers[1:] != answers[:-1]


def settled_step(answers: Tensor) -> Tensor:
    """Returns the first step, counted from 0, from which the answer stays that of the last step, for answers [S, …]: […]."""
    same = (answers == answers[-1]).long()
    return answers.shape[0] - same.flip(0).cumprod(0).sum(0)


def _log_p(logits: Tensor) -> Tensor:
    return wide(logits).log_softmax(-1)


KURTOSIS = 10.0  # above which a neuron counts, as in the figures of Gurnee et al.; a normal distribution has 3
_NUMBERS_AT_ONCE = 2**24


@dataclass(frozen=True)
class NeuronMoments:
    """Kurtosis m₄ / m₂² and skew m₃ / m₂^1.5 of each neuron's effect on the logits, [F] each; NaN where it has none."""

    kurtosis: Tensor
    skew: Tensor

    def predicts(self, threshold: float = KURTOSIS) -> Tensor:
        """Returns which neurons predict: kurtosis above the threshold, positive skew, [F] booleans."""
        return (self.kurtosis > threshold) & (self.skew > 0)

    def suppresses(self, threshold: float = KURTOSIS) -> Tensor:
        """Returns which neurons suppress: kurtosis above the threshold, negative skew, [F] booleans."""
        return (self.kurtosis > threshold) & (self.skew < 0)

    def shares(self, threshold: float = KURTOSIS) -> tuple[float, float]:
        """Returns the shares of a layer's neurons that predict and that suppress."""
        predicts, suppresses = self.predicts(threshold), self.suppresses(threshold)
        return predicts.double().mean().item(), suppresses.double().mean().item()


def neuron_moments(down: Tensor, unembedding: Tensor, *, gain: Tensor | None = None) -> NeuronMoments:
    """Returns the moments of the neurons of one layer: `down` [D, F] as the MLP's last linear map stores it, `unembedding` [V, D].

    `gain` [D] is the product of the weights of the norms between the two (None: 1): the last norm's and, where there is one, the
    block's output norm's. Some neurons at a time.
    """
    if down.shape[0] != unembedding.shape[1]:
        raise ValueError(
            f"neurons: down {tuple(down.shape)}, unembedding {tuple(unembedding.shape)}; allowed: [D, F] and [V, D] of one D"
        )
    out = down.float() if gain is None else down.float() * gain.float()[:, None]
    words = unembedding.float()
    kurtosis, skew = [], []
    for some in out.split(max(1, _NUMBERS_AT_ONCE // words.shape[0]), dim=1):
        effect = words @ some
        effect = effect - effect.mean(0)
        effect = effect / effect.abs().amax(0)  # the fourth power of what is small or large would leave float32
        second = effect.square().mean(0)
        kurtosis.append(effect.pow(4).mean(0) / second.square())
        skew.append(effect.pow(3).mean(0) / second.pow(1.5))
    return NeuronMoments(torch.cat(kurtosis), torch.cat(skew))


FLOOR = 100.0  # a massive activation is larger than this
RATIO = 1000.0  # and larger than this many times the median


@dataclass(frozen=True)
class Activations:
    """The largest activation of each row and how it compares, each [B].

    `top` is max |x| and `median` the median |x| over all entries of real tokens; `token` (long) is the index of the largest
    among the real tokens, `channel` (long) where it stands in the width; `massive` (long) counts the entries beyond both
    thresholds. `top` is NaN where an entry is, and both are where no token is real.
    """

    top: Tensor
    median: Tensor
    token: Tensor
    channel: Tensor
    massive: Tensor

    @property
    def ratio(self) -> Tensor:
        """The largest over the median."""
        return self.top / self.median


def massive_activations(x: Tensor, valid: Tensor | None = None, *, floor: float = FLOOR, ratio: float = RATIO) -> Activations:
    """Returns the largest activation of states [B, T, D] and how many are massive: |x| > floor and |x| > ratio · median |x|."""
    size = wide(x).abs()
    if valid is None:
        valid = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    real = valid.bool()
    broken = (size.isnan().any(-1) & real).any(-1)
    size = size.masked_fill(~real[..., None], torch.nan)
    median = size.flatten(1).nanmedian(-1).values
    top, place = size.nan_to_num(nan=-1.0, posinf=torch.inf).flatten(1).max(-1)
    token, channel = place // x.shape[-1], place % x.shape[-1]
    index = (real.long().cumsum(-1) - 1).gather(-1, token[:, None])[:, 0]
    massive = (size > floor) & (size > ratio * median[:, None, None])
    return Activations(torch.where(broken | (top < 0), torch.nan, top), median, index, channel, massive.flatten(1).sum(-1))
