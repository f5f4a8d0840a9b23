"""Which stacks have a fused form, and the reason that is given for the others."""

import warnings
from types import SimpleNamespace

import pytest
import torch

from loopwright.kernels import gate
from loopwright.model import fused_support
from loopwright.model.passes import Adaptation, Effects
from tests.cases import noisy

REASONS = {
    "ouro-1.4b-tiny": {"core": None},
    "huginn-tiny": {"prelude": None, "core": None, "coda": None},
    "retrofit-llama-1b-tiny": {"prelude": None, "core": None, "coda": None},
    "retrofit-olmo2-1b-tiny": {"core": "norms of queries and keys"},
    "stars-addition-tiny": {"core": "a LayerNorm"},
    "asura-tiny": {"core": "layer_post_norm 'per-step'"},
}


@pytest.mark.parametrize("name", REASONS)
def test_what_a_preset_has(name: str):
    model = noisy(name)
    assert {stack: fused_support.unsupported_reason(model, stack) for stack in REASONS[name]} == REASONS[name]


def test_what_somebody_put_there():
    model = noisy("ouro-1.4b-tiny")
    assert fused_support.unsupported_reason(noisy("ouro-1.4b-tiny", mlp="gelu"), "core") == "an MLP that is not gated (SwiGLU)"
    hook = model.core[1].mlp.register_forward_hook(lambda *args: None)
    assert fused_support.unsupported_reason(model, "core") == "a hook on a MLP"
    hook.remove()
    model.core[1].mlp.up_proj.double()
    assert fused_support.unsupported_reason(model, "core") == "weights of several types or devices"
    model.core[0].self_attn.q_proj = torch.nn.Sequential(model.core[0].self_attn.q_proj)
    assert fused_support.unsupported_reason(model, "core") == "a Sequential"


@pytest.mark.parametrize(
    ("capability", "compiler", "reason"), [((7, 5), True, "8.0"), ((9, 0), False, "gcc"), ((9, 0), True, None)]
)
def test_where_there_are_kernels(monkeypatch, capability, compiler: bool, reason: str | None):
    def model(dtype: torch.dtype, cuda: bool = True, width: int = 1024) -> SimpleNamespace:
        weight = SimpleNamespace(dtype=dtype, is_cuda=cuda, device=0)
        return SimpleNamespace(embed_tokens=SimpleNamespace(weight=weight), config=SimpleNamespace(hidden_size=width))

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(fused_support, "can_compile", lambda: compiler)
    found = fused_support.no_kernels(model(torch.bfloat16), 1)
    assert found is None if reason is None else reason in found
    assert "float64" in fused_support.no_kernels(model(torch.float64), 1)
    assert "NVIDIA" in fused_support.no_kernels(model(torch.bfloat16, cuda=False), 1)
    if reason is None:
        assert "widths up to 512 (got 1024)" in fused_support.no_kernels(model(torch.float32), 2)
        served = [(model(torch.float32), 1), (model(torch.float32, width=512), 2), (model(torch.bfloat16), 2)]
        assert [fused_support.no_kernels(*each) for each in served] == [None] * 3


def test_it_is_said_once():
    gate.warn_once.cache_clear()
    inside = Adaptation([Effects(update=lambda layer, name, x, weight: None)])
    with pytest.warns(UserWarning, match="the core runs without fused kernels: adapters inside its blocks"):
        assert fused_support.adapted("core", inside)
    with pytest.warns(UserWarning, match="no fused kernels: they need an NVIDIA GPU"):
        assert fused_support.fused_stacks(noisy("ouro-1.4b-tiny"), 1) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fused_support.adapted("core", inside) and fused_support.fused_stacks(noisy("ouro-1.4b-tiny"), 1) == []
        assert not fused_support.adapted("core", None) and not fused_support.adapted(
            "core", Adaptation([Effects(signal=torch.zeros(1))])
        )
