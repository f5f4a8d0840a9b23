"""Prediction and suppression neurons: what the output vector of an MLP neuron says to the vocabulary, from the weights alone.

The effect of a neuron on the logits is y = W_U (g ⊙ w_out), g the gains of the norms that its output passes: one number per
token of the vocabulary. Few tokens far from the rest make its kurtosis large; where they are raised the skew is positive and
the neuron predicts, where they are lowered it is negative and the neuron suppresses (after Gurnee et al. 2024).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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
