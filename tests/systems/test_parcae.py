"""The injection "after Parcae" (arXiv 2604.12946 and its public code); the rest of Parcae is not here."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import loopwright as lw
from loopwright.model.parts.part import FIRST
from loopwright.schema import build_kind
from loopwright.training.optim import OPTIMISERS
from tests.systems.items import differs, same

SYSTEM = "Parcae"


def injected() -> lw.LoopedForCausalLM:
    return lw.build("stars-addition-tiny", injection={"kind": "diagonal"}, state={"kind": "noise"})


@same(SYSTEM, "injection: exp(−dt exp(a)) s + dt B e, dt a softplus, for each channel")
def test_injection() -> None:
    part = injected().double().injection
    torch.manual_seed(0)
    for parameter in part.parameters():
        torch.nn.init.normal_(parameter)
    s, e = torch.randn(2, 3, 5, 32, dtype=torch.float64)
    dt = torch.log1p(torch.exp(part.step_size))
    wanted = torch.exp(-dt * torch.exp(part.rate)) * s + dt * (e @ part.input_proj.T)
    assert torch.allclose(part(s, e, FIRST), wanted, atol=1e-6)  # the decay is worked out in float32
    assert torch.allclose(F.softplus(part.step_size), dt)


@pytest.mark.parametrize("kind", [{"kind": "adamw"}, {"kind": "ellis-adam"}, {"kind": "muon", "adam_lr": 1e-3}])
@same(SYSTEM, "weight decay of matrices leaves a, dt and B alone")
def test_decay(kind: dict[str, object]) -> None:
    optim = build_kind({**kind, "lr": 1e-3, "weight_decay": 0.1}, OPTIMISERS)
    model = injected()
    optim.prepare(model)
    decays = {name: group["weight_decay"] for group in optim(model).param_groups for name in group["param_names"]}
    assert [decays[f"injection.{name}"] for name in ("rate", "step_size", "input_proj")] == [0.0] * 3
    assert decays["core.0.mlp.up_proj.weight"] == decays["embed_tokens.weight"] == 0.1
    assert "Parcae" in (type(model.injection).__doc__ or "")


@differs(SYSTEM, "the rest of the model and its training")
def test_there_is_no_preset_and_no_recipe_of_its_name() -> None:
    from loopwright.model.presets import PRESETS
    from loopwright.recipes import names

    assert not any("parcae" in name for name in (*PRESETS, *names()))
