"""What is compiled for training, and that it computes the same."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

import loopwright as lw
from loopwright.data.batch import Batch
from loopwright.metrics.dual import product
from loopwright.model.config import LoopedConfig
from loopwright.training import compile as under_test
from loopwright.training.compile import CompiledStep, should_compile
from loopwright.training.objectives.losses import EveryStep, Final
from loopwright.training.rollout import Plan
from loopwright.training.run import TrainingModule
from tests.cases import noisy

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_auto_compiles_text_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "can_compile", lambda: True)
    assert should_compile("auto", CUDA, alike=True)[0]
    assert not should_compile("auto", CUDA, alike=False)[0]
    assert should_compile("auto", CPU, alike=True) == (False, None)
    assert should_compile(True, CPU, alike=False) == (True, None)
    monkeypatch.setattr(under_test, "can_compile", lambda: False)
    wanted, message = should_compile("auto", CUDA, alike=True)
    assert not wanted and message is not None and "Triton" in message


def documents(vocab: int, rows: int = 3, length: int = 160) -> Batch:
    draws = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocab, (rows, length), generator=draws)
    segments = (torch.rand(ids.shape, generator=draws) < 1 / 25).long().cumsum(1)
    return Batch(ids, ids.clone(), segment_ids=segments, seeds=torch.arange(rows)).ready()  # each pass from the same starts


def loss_and_gradients(
    model: lw.LoopedForCausalLM, batch: Batch, objective: object, **options: object
) -> tuple[Tensor, list[Tensor]]:
    model.zero_grad()
    loss, _ = TrainingModule(model, objective, **options)(batch, Plan(3, 3))  # type: ignore[arg-type]
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("objective", [Final(z_loss=1e-4), EveryStep()])
def test_places_that_fill_up_a_shape_change_nothing(objective: object) -> None:
    model = noisy("huginn-tiny").double().train()
    batch = documents(model.config.vocab_size)
    batch.labels[batch.segment_ids.diff(prepend=batch.segment_ids[:, :1]) > 0] = -100
    plain, filled = (loss_and_gradients(model, batch.ready(coarse=coarse), objective) for coarse in (False, True))
    assert len(batch.ready(coarse=True).asked) > len(batch.ready().asked)
    assert plain[0].item() == pytest.approx(filled[0].item(), abs=1e-12)
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(plain[1], filled[1], strict=True))


def test_stacks_run_in_their_compiled_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prelude, core and coda each go through what was compiled, and the loss is the same."""
    model = lw.build("huginn-tiny").train()
    called: list[str] = []

    def compiling(function, **options):
        def run(*args):
            called.append(args[0] if isinstance(args[0], str) else "step")
            return function(*args)

        return run

    batch = documents(model.config.vocab_size)
    plain = loss_and_gradients(model, batch, EveryStep())
    monkeypatch.setattr(torch, "compile", compiling)
    again = loss_and_gradients(model, batch, EveryStep(), compiled=True)
    assert called == ["prelude", "step", "step", "step", "coda"]
    assert torch.equal(plain[0], again[0]) and all(map(torch.equal, plain[1], again[1]))


@pytest.mark.slow  # the compiler's import and its tracing take seconds
@pytest.mark.parametrize("layers", [(2, 0, 0), (1, 1, 0), (0, 1, 1)], ids=["dense", "no-coda", "no-prelude"])
def test_the_second_pass_compiles_nothing(layers: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stacks are empty: the second pass may be captured as a graph, in which nothing can be compiled."""
    graphs: list[object] = []

    def counting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counting))
    prelude, core, coda = layers
    shape = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "depth": 3 if core else 1}
    config = LoopedConfig(prelude_layers=prelude, core_layers=core, coda_layers=coda, **shape)
    ids = torch.randint(0, 32, (2, 8))
    module = TrainingModule(lw.LoopedForCausalLM(config).train(), Final(), compiled=True)
    seen = []
    for _ in range(3):
        module(Batch(ids, ids.clone()).ready(), Plan(3, 3))[0].backward()
        seen.append(len(graphs))
    assert seen == [len([n for n in layers if n])] * 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stars-addition-tiny", "ouro-1.4b-tiny"])
def test_the_product_with_the_jacobian_is_one_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = noisy(name, std=0.3).double().train()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    e, p = model.embed(torch.randint(0, 13, (3, 7)))
    s = torch.randn_like(e).requires_grad_()
    v = torch.randn_like(s)
    step = CompiledStep(model)
    found = step.product(s, v, e.detach(), 0, p)
    assert step.dual is not step.plain_dual  # which it is where the compiler could not follow
    plain = product(lambda x: model.step(x, e.detach(), 0, p), s, v)
    weights = [s, *(w for w in model.core.parameters() if w.requires_grad)]
    for a, b in zip(
        (*plain, *torch.autograd.grad(plain[0].square().sum() + plain[1].square().sum(), weights)),
        (*found, *torch.autograd.grad(found[0].square().sum() + found[1].square().sum(), weights)),
        strict=True,
    ):
        torch.testing.assert_close(b, a, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("error", ["Unsupported", "FailOnRecompileLimitHit"])
def test_a_product_that_cannot_be_compiled_is_said_and_run_as_it_is(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo import exc

    def compiling(function, **options):
        def run(*args):
            raise getattr(exc, error)("no such thing")

        return run

    model = noisy("stars-addition-tiny").train()
    monkeypatch.setattr(torch, "compile", compiling)
    e, p = model.embed(torch.randint(0, 13, (3, 7)))
    step = CompiledStep(model)
    with pytest.warns(UserWarning, match="the Jacobian's product is not compiled: no such thing"):
        found = step.product(e, e, e, 0, p)
    assert torch.equal(found[1], product(lambda x: model.step(x, e, 0, p), e, e)[1])
    assert torch.equal(found[1], step.product(e, e, e, 0, p)[1])


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["huginn-tiny", "ouro-1.4b-tiny"])
@pytest.mark.parametrize("objective", [Final(), EveryStep()])
@pytest.mark.parametrize("remat", ["none", "step"])
def test_compiled_documents(name: str, objective: object, remat: str) -> None:
    """Attention by blocks and compiled stacks give the loss and gradients of the dense mask, in float32."""
    torch._dynamo.reset()
    model = lw.build(name, hidden_size=64, num_attention_heads=4, num_key_value_heads=2).train().cuda()  # heads of 16, the least
    batch = documents(model.config.vocab_size).to("cuda")
    plain = loss_and_gradients(model, batch, objective)
    fast = loss_and_gradients(model, batch, objective, compiled=True, remat=remat)
    torch.testing.assert_close(fast[0], plain[0], rtol=1e-5, atol=1e-6)
    for a, b in zip(fast[1], plain[1], strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-5)
