"""Modulated maps by kernels as operators and in a layer: in float32 by Triton's interpreter, in bfloat16 on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.kernels.interpreted import DEVICE, need_triton, numbers
from tests.model.parts.adapters.modulated_maps import DTYPE, GROUPS, SCALE, cast, given, small_tiles

need_triton()

from loopwright.kernels.gate import free_launches  # noqa: E402
from loopwright.model.causal_lm import LoopedForCausalLM  # noqa: E402
from loopwright.model.config import LoopedConfig  # noqa: E402
from loopwright.model.parts.adapters import diagonal  # noqa: E402
from loopwright.model.parts.adapters import modulated as under_test  # noqa: E402  (the interpreter must have been chosen)
from loopwright.model.parts.adapters.modulated import modulated  # noqa: E402


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    small_tiles(monkeypatch, under_test)


def test_frozen_weights_get_no_gradient_and_x_is_not_kept() -> None:
    x, w, bias, a, b, d = given(GROUPS["two"], biased=False, wide=True)
    x, d = (one.to(DTYPE).requires_grad_() for one in (x, d))
    w, a, b = ([one.to(DTYPE) for one in ones] for ones in (w, a, b))
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        ys = modulated(x, w, a, b, d, SCALE, *bias, *[None] * (3 - len(bias)))[:-1]
    assert all(one.data_ptr() != x.data_ptr() for one in kept)
    sum(y.square().sum() for y in ys).backward()
    assert x.grad is not None and d.grad is not None and all(one.grad is None for one in (*w, *a, *b))


@pytest.mark.parametrize("targets", ["linears", ["q_proj", "v_proj", "down_proj"]], ids=["all", "some"])
@pytest.mark.parametrize("compiled", [False, True], ids=["written", "compiled"])
def test_a_layer_by_kernels_is_the_layer_by_products(
    targets: str | list[str], compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients of state and controller, at one step per row too; as one graph where it is compiled."""
    shape = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    adapters = [{"kind": "controller", "rank": 16, "targets": targets}, {"kind": "diagonal", "rank": 16}]
    model = LoopedForCausalLM(LoopedConfig(depth=2, max_steps=2, adapters=adapters, **shape)).to(DEVICE, DTYPE)
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if name.startswith("adapters.") and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.3)
    x = numbers(3, 17, 32).to(DTYPE)
    _, p = model.embed(inputs_embeds=x)
    weights = [w for name, w in model.named_parameters() if name.startswith("adapters.") and w.requires_grad]
    found = []
    for kind in (None, DTYPE):
        monkeypatch.setattr(diagonal, "kernel_dtype", lambda *given, kind=kind: kind)
        torch._dynamo.reset()
        step = torch.compile(model.step, backend="aot_eager", fullgraph=True) if compiled and kind is not None else model.step
        s = x.clone().requires_grad_()
        y = step(s, x, 1, p)
        found.append([y.detach(), *torch.autograd.grad(y.square().sum(), [s, *weights])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=(1e-4 if DEVICE == "cpu" else 0.05) * float(one.abs().max()))


@pytest.mark.gpu
def test_kernels_run_where_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a Hopper GPU, for enough tokens; not where second derivatives may be asked for; in one graph where it is compiled."""
    if torch.cuda.get_device_capability()[0] != diagonal.HOPPER:
        pytest.skip("no Hopper GPU")
    shape = {"vocab_size": 32, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
    model = LoopedForCausalLM(LoopedConfig(depth=1, max_steps=1, adapters=[{"kind": "diagonal", "rank": 16}], **shape))
    model = model.to(DEVICE, DTYPE)
    torch.nn.init.normal_(model.adapters[0].table)
    called: list[int] = []
    plain = diagonal.Bases._by_kernels
    monkeypatch.setattr(diagonal.Bases, "_by_kernels", lambda *given: called.append(0) or plain(*given))
    x = numbers(16, diagonal.LEAST_REPLAYED // (16 * 256), 256).to(DTYPE)
    _, p = model.embed(inputs_embeds=x)
    by_products = model.step(x, x, 0, p)
    with free_launches():
        with sdpa_kernel(SDPBackend.MATH):
            model.step(x, x, 0, p)
        assert called == []  # neither there, nor before, where it was too little to launch one by one
        by_kernels = model.step(x, x, 0, p)
        assert len(called) == 4  # q, k, v; o; gate, up; down
        monkeypatch.setattr(diagonal.Bases, "_by_kernels", plain)
        compiled = torch.compile(model.step, backend="aot_eager", fullgraph=True)(x, x, 0, p)
    near = 0.05 * float(by_products.detach().abs().max())
    torch.testing.assert_close(by_kernels, by_products, rtol=0, atol=near)
    torch.testing.assert_close(compiled, by_kernels, rtol=0, atol=near)


def test_bases_are_trained_beside_diagonals_of_another_type() -> None:
    x, w, _, a, b, d = cast(given(GROUPS["two"], biased=False, wide=True), torch.float16)  # type: ignore[misc]
    d = d.detach().float().requires_grad_()
    *ys, _ = modulated(x, w, a, b, d, SCALE, None, None, None)
    sum(y.float().square().sum() for y in ys).backward()
    assert d.grad.dtype == torch.float32 and all(one.grad.isfinite().all() and one.grad.any() for one in (*a, *b))


def test_the_operators_keep_what_torch_asks_of_them() -> None:
    x, w, bias, a, b, d = given(GROUPS["two"], biased=True, wide=True)
    x, w, bias, a, b, d = cast((x, w, bias, a, b, d), DTYPE)  # type: ignore[misc]
    torch.library.opcheck(modulated, (x, w, a, b, d, SCALE, *bias, *[None] * (3 - len(bias))))
