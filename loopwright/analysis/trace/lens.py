"""What each layer and each step would say next: the head on the residual of a layer (logit lens), or coda and head on the state
after a step (coda lens); how sure it is (entropy), how much it changed (KL), and whether the answer flipped."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from loopwright.analysis.trace.collect import Collector, Seen, Sheet, token_index
from loopwright.metrics.prediction import lens_reading
from loopwright.model.forward.context import Pass
from loopwright.model.looped import LoopedForCausalLM


class LensStatistics(Collector):
    """Per place (logit lens) and per step (coda lens), of each row's last valid token: the likeliest token, the entropy, and
    the KL divergence from what the same layer said one step earlier; all in nats."""

    def __init__(self, sheet: Sheet, model: LoopedForCausalLM) -> None:
        self.sheet, self.model = sheet, model
        self.index = token_index(sheet.view, [-1])[:, 0]
        self.last: dict[int | str, Tensor] = {}

    def see(self, name: str, value: Tensor, at: Seen) -> None:
        if name == "residual":
            stack, step, layer = at
            x = value[torch.arange(value.shape[0], device=value.device), self.index]
            reading = self._measure(layer_logits(self.model, x, step), layer if stack == "core" else None)
            for key, numbers in reading.items():
                self.sheet.put(f"lens_{key}", at, numbers)

    def read(self, s: Tensor, p: Pass, step: int) -> None:
        """Reads out the state after a step, through the coda, and notes what it says."""
        quiet = replace(p, tap=None)
        x = self.model.features(s, quiet)[torch.arange(s.shape[0], device=s.device), self.index]
        for key, numbers in self._measure(self.model.lm_head(x), "state").items():
            self.sheet.put_step(f"answer_{key}", step, numbers)

    def _measure(self, logits: Tensor, key: int | str | None) -> dict[str, Tensor]:
        reading = lens_reading(logits, None if key is None else self.last.get(key))
        if key is not None:
            self.last[key] = logits
        return {"token": reading.answer, "entropy": reading.entropy, "change": reading.divergence}


def layer_logits(model: LoopedForCausalLM, x: Tensor, step: int) -> Tensor:
    """Returns what the head makes of a layer's residual [B, D]: through the norm that the model's own read-out ends with."""
    if model.config.final_norm["kind"] == "none" and model.config.end_norm == "every":
        x = model.end_norm(x)  # Ouro: the head was trained on what this norm gives
    return model.lm_head(model.norm(x))
