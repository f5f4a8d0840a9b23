"""Universal Transformer: adaptive computation as tensor2tensor's `universal_transformer_util` has it, written again in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import loopwright as lw
from loopwright.data.batch import Batch
from loopwright.model.parts.part import StepIndex
from loopwright.recipes import recipe
from loopwright.training.objectives.losses import Ponder
from loopwright.training.rollout import Plan, rollout
from tests.cases import noisy
from tests.systems.items import differs, same

SYSTEM = "Universal Transformer"
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2], [2, 7, 1, 8, 2, 8, 1]])


def rows() -> Batch:
    """Two rows of which the last three tokens are predicted."""
    labels = IDS.clone()
    labels[:, :4] = -100
    return Batch(IDS, labels)


def signal(places: Tensor, width: int) -> Tensor:
    """Sines, then cosines, of places at frequencies from 1 to 1/10,000."""
    half = width // 2
    frequency = 10_000.0 ** (-torch.arange(half, dtype=torch.float32) / (half - 1))
    angle = places.float()[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], -1).double()


def universal(bias: float, std: float = 0.6) -> lw.LoopedForCausalLM:
    """The tiny preset in float64, its halting spread over the steps."""
    model = noisy("universal-tiny", std=std).double()
    model.halting.weight.data.mul_(0.5)
    model.halting.bias.data.fill_(bias)
    return model


def act(model: lw.LoopedForCausalLM, ids: Tensor, depth: int) -> tuple[Tensor, Tensor, Tensor]:
    """The loop of `universal_transformer_act`: the answering state, n_updates and the remainders, per token."""
    (e, p), threshold, width = model.embed(ids), 1 - 0.01, model.config.hidden_size
    state, answer = e, torch.zeros_like(e)
    probability, remainders, updates = (torch.zeros(ids.shape, dtype=e.dtype) for _ in range(3))
    for step in range(depth):
        place = signal(torch.arange(ids.shape[1]), width) + signal(torch.tensor([step]), width)
        halt = torch.sigmoid((state + place) @ model.halting.weight[0] + model.halting.bias)
        running = (probability < 1.0).to(e)
        stops = (probability + halt * running > threshold).to(e) * running
        running = (probability + halt * running <= threshold).to(e) * running
        probability = probability + halt * running
        remainders = remainders + stops * (1 - probability)
        probability = probability + stops * remainders
        updates = updates + running + stops
        weight = (halt * running + stops * remainders)[..., None]
        state = model.step(state, e, step, p)
        answer = state * weight + answer * (1 - weight)
    return answer, updates, remainders


@pytest.mark.parametrize("bias", [-2.5, -0.5, 1.0])
@same(SYSTEM, "ACT as tensor2tensor's: values read before the layers, states interpolated")
def test_act_is_tensor2tensors(bias: float) -> None:
    model = universal(bias)
    with torch.no_grad():
        for depth in (1, 3, 6):
            answer, _, remainders = act(model, IDS, depth)
            found = model(IDS, depth=depth).logits
            assert torch.allclose(found, answer @ model.lm_head.weight.T, atol=1e-6, rtol=0)  # signals are in float32
            if bias == -2.5 and depth == 3:  # most tokens never halt
                left = model(IDS, depth=depth).exit_probs.sum(-1)[remainders == 0]
                assert len(left) > 5 and float(left.max()) < 1


@pytest.mark.parametrize("bias", [-0.5, 1.0])
@same(SYSTEM, "cost N + R, weight 0.01, and its gradients")
def test_loss_and_gradients(bias: float) -> None:
    model, batch = universal(bias), rows()
    rolled = rollout(model, batch, Plan(5, 5))
    loss, _ = Ponder()(model, rolled)
    found = torch.autograd.grad(loss, list(model.parameters()))
    answer, updates, remainders = act(model, batch.input_ids, 5)
    asked = batch.labels[:, 1:] != -100
    logits = (answer @ model.lm_head.weight.T)[:, :-1][asked]
    cost = (updates + remainders)[:, :-1][asked].mean()
    wanted = torch.nn.functional.cross_entropy(logits, batch.labels[:, 1:][asked]) + 0.01 * cost
    assert float(loss.detach()) == pytest.approx(float(wanted.detach()), abs=1e-7)
    for ours, theirs in zip(found, torch.autograd.grad(wanted, list(model.parameters())), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6, rtol=1e-5)


@same(SYSTEM, "halting bias 1, threshold 0.99, and the mixed state answers")
def test_the_preset_and_its_recipe() -> None:
    config, found = lw.preset("universal"), recipe("universal-act", [])
    assert config.halting == {"kind": "universal-act"} and config.read_out == "expected" == Ponder().read_out
    part = lw.build("universal-tiny").halting
    assert (part.start_bias, part.eps, float(part.bias.detach())) == (1.0, 0.01, 1.0)
    assert (found.model["name"], dict(found.objective)) == ("universal", {"kind": "ponder", "weight": 0.01})


@differs(SYSTEM, "where the cost is charged")
def test_the_cost_is_charged_at_the_targets() -> None:
    model, batch = universal(-0.5), rows()
    _, updates, remainders = act(model, batch.input_ids, 4)
    asked = batch.labels[:, 1:] != -100
    cost = Ponder()(model, rollout(model, batch, Plan(4, 4)))[1]["ponder"]
    assert float(cost) == pytest.approx(float((updates + remainders)[:, :-1][asked].mean()), abs=1e-7)
    assert abs(float(cost - (updates + remainders).mean())) > 1e-4


@differs(SYSTEM, "ACT")
def test_graves_act_stands_beside_it() -> None:
    """The same weights under `act`: another mechanism, under another name."""
    model = universal(-0.5)
    graves = lw.build("universal-tiny", halting={"kind": "act"}).double()
    graves.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert float((graves(IDS).logits - model(IDS).logits).abs().max()) > 0.1
        assert torch.allclose(graves(IDS).exit_probs.sum(-1), torch.ones(2, 7, dtype=torch.float64))


@same(SYSTEM, "sinusoids of position and step before every step (tensor2tensor)")
def test_signals() -> None:
    model = universal(1.0)
    (e, p), width = model.embed(IDS), model.config.hidden_size
    for step in range(3):
        added = model.adapters[0].begin(StepIndex(step, step), e, p).signal
        wanted = signal(torch.arange(IDS.shape[1]), width) + signal(torch.tensor([step]), width)
        assert torch.allclose(added.expand(1, *wanted.shape)[0], wanted, atol=1e-6, rtol=0)


@differs(SYSTEM, "the step's signal")
def test_signals_of_the_paper_are_others() -> None:
    """The paper: sin and cos of t / 10,000^(2j / D), interleaved, t from 1."""
    part = lw.build("universal-tiny").adapters[0]
    width, t = part.width, 1
    angle = t / 10_000 ** (torch.arange(0, width, 2) / width)
    printed = torch.stack([angle.sin(), angle.cos()], -1).flatten()
    _, p = lw.build("universal-tiny").embed(IDS)
    ours = part.begin(StepIndex(0, 0), torch.zeros(1), p).signal[0, 0] - signal(torch.tensor([0]), width)[0].float()
    assert (part.first, list(part.parameters())) == (0, [])
    assert float((printed - ours).abs().max()) > 0.5


@differs(SYSTEM, "norms, dropout, steps, size")
def test_the_preset_is_the_papers_drawing_at_the_small_size() -> None:
    config = lw.preset("universal")
    assert (config.norm_placement, config.dropout, config.depth) == (["residual"], 0.0, 6)
    assert (config.hidden_size, config.intermediate_size, config.num_attention_heads) == (512, 2048, 8)


@differs(SYSTEM, "recipe `universal-act`")
def test_the_recipe_is_ours() -> None:
    found = recipe("universal-act", [])
    assert (found.data["kind"], found.model["changes"]["hidden_size"], found.updates) == ("hops", 128, 5000)
    assert (found.optim["kind"], found.optim["lr"], found.schedule["kind"]) == ("adamw", 1e-3, "cosine")
