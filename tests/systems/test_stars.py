"""STARS (arXiv 2605.26733) written again from its text, and from what its public code does."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import loopwright as lw
from loopwright.data.batch import Batch
from loopwright.data.chat import Chat
from loopwright.data.records import drawn_places
from loopwright.data.tasks.addition import Addition
from loopwright.metrics.score import exact_rows
from loopwright.recipes import recipe
from loopwright.schema import build_kind
from loopwright.storage.run import RunFolder
from loopwright.training.depth import RULES
from loopwright.training.distributed import join
from loopwright.training.objectives.jacobian import JacobianPenalty, windows
from loopwright.training.objectives.losses import Final
from loopwright.training.objectives.penalties import PENALTIES, StateChange, Weighted
from loopwright.training.optim import SCHEDULES
from loopwright.training.report import Silent
from loopwright.training.rollout import Plan, Rollout, rollout
from loopwright.training.run import Job, TrainingModule
from tests.cases import noisy
from tests.systems.items import differs, same

SYSTEM = "STARS"
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2}
SMALL: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "dropout": 0.0, **HEADS}


def walked(depth: int = 3) -> tuple[lw.LoopedForCausalLM, Rollout]:
    """A small model in float64, and the way of four rows through it."""
    model = noisy("stars-addition-tiny", std=0.5, **SMALL).double().train()
    ids = torch.randint(0, 15, (4, 5), generator=torch.Generator().manual_seed(0))
    return model, rollout(model, Batch(ids, ids), Plan(depth, depth, 7))


def slopes(model: lw.LoopedForCausalLM, value: Tensor) -> Tensor:
    trained = list(model.parameters())
    found = torch.autograd.grad(value, trained, allow_unused=True, retain_graph=True)
    return torch.cat([torch.zeros_like(p).flatten() if g is None else g.flatten() for p, g in zip(trained, found, strict=True)])


def algorithm_1(model: lw.LoopedForCausalLM, path: Rollout, v: Tensor, rounds: int) -> Tensor:
    """The loop over k of Algorithm 1 and what follows it, row by row, at h(t), with the whole Jacobian."""
    with sdpa_kernel(SDPBackend.MATH):
        y = model.step(path.last, path.e, path.last_step, path.p)
        rows = [torch.autograd.grad(x.sum(), path.last, create_graph=True)[0].flatten(1) for x in y.flatten(1).unbind(1)]
    jacobian, v = torch.stack(rows, dim=1), v.flatten(1)
    for _ in range(rounds):
        j = torch.einsum("bij,bj->bi", jacobian, v)
        v = j / (j.norm(dim=1, keepdim=True) + 1e-300)
    return sum((row.norm() ** 2 for row in j), torch.zeros(())) / len(j)


@pytest.mark.parametrize("rounds", [1, 2, 3])
@same(SYSTEM, "the penalty of Algorithm 1 at h(t) on every row, for K = 1, 2, 3 (mode `paper`)")
def test_algorithm_1(rounds: int) -> None:
    model, path = walked()
    penalty = JacobianPenalty("paper", power_steps=rounds)
    v = penalty.probe(path.last, path.batch, path.plan.update).v
    assert torch.allclose(v.flatten(1).norm(dim=1), torch.ones(4, dtype=torch.float64))
    wanted, found = algorithm_1(model, path, v, rounds), penalty(model, path)
    assert float(found) == pytest.approx(float(wanted), rel=1e-10) and float(wanted) > 0.01
    assert (slopes(model, found) - slopes(model, wanted)).norm() < 1e-9 * slopes(model, wanted).norm()
    with torch.no_grad():
        assert float(JacobianPenalty("exact")(model, path)) != pytest.approx(float(wanted), rel=0.01)  # at h(t − 1)


@differs(SYSTEM, "law of v")
def test_directions_are_normal_up_to_three() -> None:
    ids = torch.zeros(200, 20, dtype=torch.long)
    v = JacobianPenalty("paper").probe(torch.zeros(200, 20, 16), Batch(ids, ids), 0).v
    x = v.flatten() * math.sqrt(20 * 16)  # the norm of 320 normal numbers is 17.9 within 4 %
    assert abs(x.mean()) < 0.02 and abs(x.pow(2).mean() - 1) < 0.02 and abs(x.pow(4).mean() - 3) < 0.25
    assert windows(0, torch.device("cpu"), 16).abs().max() < 3


@same(SYSTEM, "the penalty of the public code, ‖vᵀJ‖² at the detached h(T) (mode `released`)")
def test_the_public_code() -> None:
    model, path = walked()
    penalty = JacobianPenalty("released")
    v = penalty.probe(path.last, path.batch, 7, padding=True).v
    v = v / v.norm()
    h = path.last.detach().requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):
        (vj,) = torch.autograd.grad(model.step(h, path.e, path.last_step, path.p), h, v, create_graph=True)
    wanted, found = vj.norm() ** 2, penalty(model, path)
    assert float(found) == pytest.approx(float(wanted), rel=1e-10)
    assert (slopes(model, found) - slopes(model, wanted)).norm() < 1e-9 * slopes(model, wanted).norm()


@same(SYSTEM, "(1 − λ)L + λJ of eq. 4 (`convex`), L + λJ of Algorithm 1 (`add`)")
def test_the_weights() -> None:
    loss, value = torch.tensor(3.0, dtype=torch.float64), torch.tensor(0.4, dtype=torch.float64)
    for weighting, wanted in (("convex", 0.9 * 3.0 + 0.1 * 0.4), ("add", 3.0 + 0.1 * 0.4)):
        weighted = Weighted.build({"kind": "jacobian", "mode": "paper", "weight": 0.1, "weighting": weighting}, PENALTIES)
        assert float(weighted.combine(loss, value, weighted.factor(0))) == pytest.approx(wanted, rel=1e-12)


@differs(SYSTEM, "λ against the loss")
def test_eq_1_sums_over_tokens() -> None:
    model, path = walked()
    logits = model.read_out(path.last, path.p).detach()
    said = logits[:, :-1].log_softmax(-1).gather(-1, path.batch.labels[:, 1:, None])[..., 0]
    eq_1, ours = -said.sum(1).mean(), Final()(model, path)[0]
    assert float(ours) == pytest.approx(float(-said.mean()), rel=1e-9)
    assert float(eq_1 / ours) == pytest.approx(4)  # targets of a row


@differs(SYSTEM, "default of the penalty `jacobian`")
def test_the_default_is_a_difference_on_a_quarter_of_the_rows() -> None:
    penalty, (_, path) = JacobianPenalty(), walked()
    assert (penalty.mode, penalty.every, penalty.detach_state) == ("fd", 4, False)
    probe = penalty.probe(path.before, path.batch, 0)
    assert probe.index is not None and len(probe.index) == 1 and penalty.in_last_step
    for name in ("stars-ouro", "stars-addition", "stars-addition-paper"):
        named = build_kind({k: v for k, v in recipe(name, []).penalties[0].items() if k in ("kind", "mode")}, PENALTIES)
        assert (named.every, named.in_last_step) == (1, False)


@differs(SYSTEM, "gradient through the state")
def test_the_gradient_reaches_the_trajectory_unless_it_is_detached() -> None:
    model, path = walked()
    both = [slopes(model, JacobianPenalty("paper", detach_state=cut)(model, path)) for cut in (None, True)]
    assert (both[0] - both[1]).norm() > 0.01 * both[1].norm()
    assert JacobianPenalty("released").detach_state


@same(SYSTEM, "depths: log-normal, rounded and clipped, one for each batch (Table 1, 6.1)")
def test_the_law_of_depths() -> None:
    rng = np.random.default_rng(0)
    for mu, sigma, most in ((2.0, 0.7, 100), (1.7, 0.4, 16)):
        wanted = np.clip(np.round(rng.lognormal(mu, sigma, 20_000)), 1, most).astype(int)
        rule = build_kind({"kind": "log-normal", "mu": mu, "sigma": sigma, "least": 1, "most": most}, RULES)
        generator = torch.Generator().manual_seed(0)
        found = [rule(0, generator).depth for _ in range(20_000)]
        counts = [np.bincount(x, minlength=most + 1) / 20_000 for x in (wanted, found)]
        assert np.abs(counts[0] - counts[1]).sum() / 2 < 0.04 and abs(np.mean(found) - wanted.mean()) < 0.2
    for name in ("stars-ouro", "stars-addition", "stars-addition-paper"):
        assert dict(recipe(name, []).depth) | {"mu": 0, "sigma": 0, "most": 0} == {
            "kind": "log-normal", "mu": 0, "sigma": 0, "least": 1, "most": 0,
        }  # fmt: skip


@same(SYSTEM, "the L2 penalty of 4.3.2")
def test_the_l2_penalty() -> None:
    model, path = walked()
    wanted = (path.last - path.before).norm(dim=-1).mean()
    assert float(StateChange()(model, path)) == pytest.approx(float(wanted), rel=1e-12)


@same(SYSTEM, "text of addition, as in the paper and as in the code")
def test_the_text_of_addition() -> None:
    forms: list[tuple[dict[str, Any], str]] = [({"reverse": "none", "space": False}, "{0}+{1}={2}§"), ({}, "{0}+{1}= {3}§")]
    for options, form in forms:
        table: Any = Addition(train=50, valid=5, test=5, **options).splits().train
        for row in range(50):
            a, b = map(int, table.show(row).split("=")[0].split("+"))
            assert table.show(row) == form.format(a, b, a + b, str(a + b)[::-1]) and 1000 <= min(a, b) <= max(a, b) <= 9999
    data = {name: recipe(name, []).data for name in ("stars-addition", "stars-addition-paper")}
    assert all(each["train"] == 100_000 and each["digits"] == 4 for each in data.values())
    assert data["stars-addition-paper"]["reverse"] == "none" and "reverse" not in data["stars-addition"]


@same(SYSTEM, "training of addition: AdamW at 1e-4, betas 0.9 and 0.999, decay 0.01, 10,000 updates of 512, λ 0.1")
def test_the_training_of_addition() -> None:
    for name, mode, start in (("stars-addition", "released", 2001), ("stars-addition-paper", "paper", 0)):
        found = recipe(name, [])
        assert dict(found.optim) == {"kind": "adamw", "lr": 1e-4, "betas": [0.9, 0.999], "weight_decay": 0.01, "decay": "all"}
        assert (found.updates, found.batch, found.accumulate, found.clip) == (10_000, 512, 1, None)
        (penalty,) = found.penalties
        wanted = {"kind": "jacobian", "mode": mode, "weight": 0.1, "weighting": "convex", "start": start}
        assert {"start": 0, **penalty} == wanted
        assert found.model == {"kind": "preset", "name": "stars-addition"} and dict(found.objective) == {"kind": "final"}


@same(SYSTEM, "schedule of addition: warm-up of 2,000 updates, then a cosine to 0")
def test_the_schedule_of_addition() -> None:
    rate = build_kind(recipe("stars-addition", []).schedule, SCHEDULES)
    for update in (0, 500, 1999, 2000, 6000, 9999):
        wanted = (update + 1) / 2000 if update < 2000 else 0.5 * (1 + math.cos(math.pi * (update - 2000) / 8000))
        assert rate(update, 10_000) == pytest.approx(wanted, abs=1e-3)


@same(SYSTEM, "training of Ouro-1.4B (6.1): 400,000 of NuminaMath, one epoch, AdamW at 1e-6, λ 0.1")
def test_the_training_of_ouro() -> None:
    found = recipe("stars-ouro", [])
    assert (found.data["dataset"], found.data["limit"], found.data["length"]) == ("AI-MO/NuminaMath-1.5", 400_000, 2049)
    assert found.data["limit_seed"] == 74 and found.updates * found.batch == 400_000
    assert dict(found.optim) == {"kind": "adamw", "lr": 1e-6, "betas": [0.9, 0.95], "weight_decay": 0.0} and found.clip == 1e6
    assert dict(found.penalties[0]) == {"kind": "jacobian", "mode": "paper", "weight": 0.1, "weighting": "convex"}
    places = drawn_places(896_215, 400_000, 74)
    assert len(set(places.tolist())) == 400_000 and abs(places.mean() / 896_215 - 0.5) < 0.002  # all over the data


@same(SYSTEM, "every parameter trains (Ouro's gate has no gradient)")
def test_all_trains(tmp_path: Path) -> None:
    for name in ("stars-addition", "stars-ouro"):
        job = Job(recipe(name, [], toy=True), RunFolder(tmp_path / name), join(), Silent())
        assert all(p.requires_grad for p in job.model.parameters())
        batch = job.splits.train.batch(range(2))
        path = rollout(job.model, batch, Plan(2, 2))
        (Final()(job.model, path)[0] + JacobianPenalty("paper")(job.model, path)).backward()
        left = [name for name, p in job.model.named_parameters() if p.grad is None]
        assert all(name.startswith("halting") for name in left) and bool(left) == (name == "stars-ouro")


@same(SYSTEM, "no exits: the state after the asked number of steps answers")
def test_no_exits() -> None:
    model, path = walked()
    assert model.config.halting["kind"] == "none"
    logits = model.eval()(path.batch.input_ids, depth=3).logits
    assert torch.allclose(logits, model.read_out(path.last, path.p), atol=1e-12)


@differs(SYSTEM, "schedule of Ouro-1.4B")
def test_the_schedule_of_ouro() -> None:
    assert dict(recipe("stars-ouro", []).schedule) == {"kind": "cosine", "warmup": 312}


@differs(SYSTEM, "precision of Ouro-1.4B")
def test_masters_are_float32() -> None:
    assert recipe("stars-ouro", []).precision == "bf16"


@differs(SYSTEM, "which 400,000")
def test_another_draw_of_the_same_number() -> None:
    torch_places = np.random.default_rng(74).permutation(1000)[:400]
    assert set(drawn_places(1000, 400, 74).tolist()) != set(torch_places.tolist())


@differs(SYSTEM, "score of addition")
def test_every_token_of_an_answer_counts() -> None:
    labels = torch.tensor([[0, 1, 2, 10, 3, 4, 11]])  # a space before the digits and an end behind them, as the code writes them
    labels[:, :3] = -100
    right = torch.nn.functional.one_hot(labels.clamp(min=0), 12).roll(-1, 1).float()
    assert exact_rows(right, labels).tolist() == [True]
    for place in (3, 6):
        wrong = right.clone()
        wrong[0, place - 1] = torch.eye(12)[0]
        assert exact_rows(wrong, labels).tolist() == [False], "the code compares the digits alone"
    assert {recipe(name, []).data["test"] for name in ("stars-addition", "stars-addition-paper")} == {5000}
    with pytest.raises(ValueError, match="depth: 0"):
        lw.build("stars-addition-tiny")(torch.zeros(1, 4, dtype=torch.long), depth=0)


@differs(SYSTEM, "order of the sums")
def test_sums_are_shuffled() -> None:
    order = recipe("stars-addition", []).order
    assert order.shuffled and order.repeat == 1  # `order: {shuffled: false, repeat: 4}` is the code's


@differs(SYSTEM, "`stable-ouro`, `addition-stable`, `addition-longer`")
def test_ours_stand_beside() -> None:
    ours, theirs = recipe("stable-ouro", []), recipe("stars-ouro", [])
    assert dict(ours.penalties[0])["mode"] == "fd" and ours.penalties[0]["share"] == 0.25 and ours.clip == 1.0
    assert (ours.data, ours.depth, ours.optim, ours.updates) == (theirs.data, theirs.depth, theirs.optim, theirs.updates)


class Count(TorchDispatchMode):
    """Adds up the FLOPs of products."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if counted := flop_registry.get(func._overloadpacket):
            self.total += counted(*args, **(kwargs or {}), out_val=found)
        return found


def test_what_the_modes_cost_in_steps() -> None:
    """The table of docs/objectives.md: Ouro-1.4B's proportions at depth 4, the loop rematerialised."""
    sizes = {"hidden_size": 128, "intermediate_size": 352, "core_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4}
    model = lw.build("ouro-1.4b", **sizes, vocab_size=512, max_position_embeddings=64).train()
    ids = torch.randint(0, 512, (4, 64), generator=torch.Generator().manual_seed(0))
    batch = Batch(ids, ids, rows=torch.arange(4))

    def flops(**options: Any) -> int:
        penalties = [Weighted(JacobianPenalty(**options), "jacobian")] if options else []
        with sdpa_kernel(SDPBackend.MATH), Count() as count:
            loss, _ = TrainingModule(model, Final(), penalties, remat="step")(batch, Plan(4, 4), weights=[0.1] * len(penalties))
            loss.backward()
        return count.total

    base = flops()
    for mode, whole, quarter in (("fd", 19.7, 4.9), ("exact", 15.1, 3.8), ("paper", 34.8, 8.7), ("released", 40.9, 10.2)):
        for share, wanted in ((1.0, whole), (0.25, quarter)):
            assert 100 * (flops(mode=mode, share=share) / base - 1) == pytest.approx(wanted, abs=0.1), (mode, share)


@differs(SYSTEM, "targets of Ouro-1.4B")
def test_the_answer_and_the_end_of_its_turn_are_asked_for(tmp_path: Path) -> None:
    """Its code strips contents, and asks for as many tokens as the answer has, from the end of the conversation back."""
    from loopwright.data.tokenizer import Tokenizer
    from tests.data.test_chat import TEMPLATE, build

    assert recipe("stars-ouro").data["kind"] == "chat" and inspect.signature(Chat).parameters["valid"].default == 100
    splits = build(tmp_path, [{"question": " one ", "answer": " two"}], template=TEMPLATE, length=90)
    batch, words = splits.train.batch([0]), Tokenizer(str(tmp_path / "words"))
    assert words.decode(batch.input_ids[0][batch.labels[0] != -100]) == " two<|im_end|>"
    assert "one " in words.decode(batch.input_ids[0])
