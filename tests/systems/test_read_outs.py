"""By which read-out models answer that halt: Ouro's threshold and gate, Ouroboros' halter, and training that obeys it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import loopwright as lw
from loopwright.checkpoints.source import Source
from loopwright.data.batch import Batch
from loopwright.storage.files import read_json, write_json
from loopwright.training.loop import train
from loopwright.training.objectives.losses import ExitGateStage
from loopwright.training.rollout import Plan, rollout
from tests.cases import gap, golden_folders, noisy
from tests.checkpoints.golden import Case
from tests.checkpoints.parity import folder_copy
from tests.systems.items import differs, same
from tests.training.runs import rows_of, small

OURO = golden_folders("ouro-gqa")[0]
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2], [2, 7, 1, 8, 2, 8, 1]])


def gate_and_logits(model: lw.LoopedForCausalLM, ids: Tensor) -> tuple[Tensor, Tensor]:
    """λ [B, T, S] and the logits [B, T, S, V] of every step."""
    out = model(ids, output_steps=True, select="last")
    gate = torch.stack([torch.sigmoid(s @ model.halting.proj.weight[0] + model.halting.proj.bias) for s in out.states], -1)
    return gate, torch.stack(out.step_logits, -2)


def hub_logits(model: lw.LoopedForCausalLM, ids: Tensor, threshold: float) -> Tensor:
    """The released rule: per token the first step whose cumulative exit probability reaches the threshold, else the last."""
    gate, logits = gate_and_logits(model, ids)
    chosen = torch.empty_like(logits[..., 0, :])
    for row in range(ids.shape[0]):
        for token in range(ids.shape[1]):
            survival, total, steps = 1.0, 0.0, gate.shape[-1]
            for step in range(steps):
                p = survival if step == steps - 1 else float(gate[row, token, step]) * survival
                survival, total = survival - p, total + p
                if total >= threshold or step == steps - 1:
                    chosen[row, token] = logits[row, token, step]
                    break
    return chosen


@torch.no_grad()
@same(
    "Ouro",
    "`early_exit_threshold` below 1, also in decoding and the engine",
)
def test_a_threshold_below_one_is_obeyed(tmp_path: Path) -> None:
    case = Case(OURO)
    ids, mask = case.values["input_ids"], case.values.get("attention_mask")
    model = lw.load(folder_copy(OURO, tmp_path / "half", early_exit_threshold=0.5))
    assert model.config.read_out == "hub"
    case.compare("threshold_0.5.logits", model(ids, attention_mask=mask).logits, mask)  # what the released file computes
    prompt = ids[-1:][mask[-1:].bool()][None] if mask is not None else ids[-1:]
    text = prompt
    for _ in range(5):
        text = torch.cat([text, hub_logits(model, text, 0.5)[:, -1].argmax(-1, keepdim=True)], 1)
    made = model.generate(prompt, max_new_tokens=5, do_sample=False, eos_token_id=None)
    assert made.tolist() == text.tolist()
    with lw.Engine(model) as engine:
        plain = engine.submit(prompt[0], max_new_tokens=5, ignore_eos=True).result()
        assert plain.tokens == text[0, prompt.shape[1] :].tolist() and min(plain.depths) < 4
        full = engine.submit(prompt[0], max_new_tokens=5, ignore_eos=True, exit="never").result()
        with pytest.raises(ValueError, match="draft_depth: the model itself leaves by exit 'gate'; set read_out 'last'"):
            engine.submit(prompt[0], draft_depth=1)
    model.config.read_out = "last"  # how it is turned off
    last = model.generate(prompt, max_new_tokens=5, do_sample=False, eos_token_id=None)
    assert full.tokens == last[0, prompt.shape[1] :].tolist() and full.depths == [4] * 5
    assert gap(model(ids, attention_mask=mask).logits, model(ids, attention_mask=mask, select="hub").logits) > 0.1


def test_it_is_kept_in_folders_and_exports(tmp_path: Path) -> None:
    model = lw.load(folder_copy(OURO, tmp_path / "half", early_exit_threshold=0.5))
    lw.save(model, tmp_path / "saved")
    lw.export(model, tmp_path / "hub")
    assert read_json(tmp_path / "hub" / "config.json")["early_exit_threshold"] == 0.5
    assert "answers at the step where its exit gate leaves" in (tmp_path / "saved" / "README.md").read_text()
    with torch.no_grad():
        wanted = model(IDS).logits
        assert all(torch.equal(lw.load(tmp_path / name)(IDS).logits, wanted) for name in ("saved", "hub"))
        # a folder from before the field answers as it did
        settings = read_json(tmp_path / "saved" / "config.json")
        del settings["read_out"]
        (tmp_path / "old").mkdir()
        write_json(tmp_path / "old" / "config.json", settings)
        (tmp_path / "old" / "model.safetensors").write_bytes((tmp_path / "saved" / "model.safetensors").read_bytes())
        old = lw.load(tmp_path / "old")
        assert old.config.read_out == "last" and torch.equal(old(IDS).logits, model(IDS, select="last").logits)
    lw.export(old, tmp_path / "old-hub")
    assert read_json(tmp_path / "old-hub" / "config.json")["early_exit_threshold"] == 1.0


@torch.no_grad()
@differs("Ouro", "logits where labels are given")
def test_labels_do_not_change_what_answers() -> None:
    model = noisy("ouro-1.4b-tiny")
    assert torch.equal(model(IDS, labels=IDS).logits, model(IDS).logits)
    gate, logits = gate_and_logits(model, IDS)
    survival = torch.cat([torch.ones_like(gate[..., :1]), (1 - gate[..., :-1]).cumprod(-1)], -1)
    p = survival * torch.cat([gate[..., :-1], torch.ones_like(gate[..., :1])], -1)
    assert gap(model(IDS, labels=IDS, select="expected").logits, (p[..., None] * logits).sum(-2)) < 1e-5


@torch.no_grad()
@differs("Ouro", "`early_exit_threshold` 1")
def test_at_threshold_one_the_last_step_answers() -> None:
    model = noisy("ouro-1.4b-tiny")
    model.halting.proj.bias.fill_(30.0)  # λ = 1 in float32
    assert model.config.read_out == "last" and torch.equal(model(IDS).logits, model(IDS, select="last").logits)
    assert torch.equal(model(IDS, select="hub").logits, model(IDS, output_steps=True).step_logits[0])


def rows() -> Batch:
    """Two rows of which the last three tokens are predicted."""
    labels = IDS.clone()
    labels[:, :4] = -100
    return Batch(IDS, labels)


@torch.no_grad()
@pytest.mark.parametrize("bias", [-1.6, -0.8])  # no token halts in five steps; every one does
@same("Ouroboros", "the mean of the states by the halter's weights answers")
def test_the_halter_of_the_public_code(bias: float) -> None:
    model = noisy("ouro-1.4b-tiny", std=0.4, halting={"kind": "halter", "width": 8, "eps": 0.0}, read_out="expected").double()
    model.halting.last.bias.fill_(bias)
    out, halter = model(IDS, depth=5, output_steps=True, select="last"), model.halting
    total = torch.zeros(IDS.shape, dtype=torch.float64)
    answer, halted = torch.zeros_like(out.states[0]), torch.zeros(IDS.shape, dtype=torch.bool)
    for s in out.states:
        hidden = torch.nn.functional.silu(halter.second(torch.nn.functional.silu(halter.first(s))))
        p = torch.sigmoid(halter.last(hidden))[..., 0]
        weight = torch.where(halted, 0.0, torch.where(total + p >= 1, 1 - total, p))
        answer, halted, total = answer + weight[..., None] * s, halted | (total + p >= 1), total + weight
    answer = answer + (1 - total)[..., None] * out.states[-1]  # what is left goes to the last state
    assert halted.all() == (bias == -0.8) and gap(model(IDS, depth=5).logits, answer @ model.lm_head.weight.T) < 1e-12
    fresh = lw.build("ouro-1.4b-tiny", halting={"kind": "halter"}).halting
    assert fresh.first.out_features == 256 and not fresh.last.weight.any() and fresh.last.bias.item() == -2


@differs("Ouroboros", "threshold and cost of ACT")
def test_thinking_longer_costs_more_here() -> None:
    part = lw.build("ouro-1.4b-tiny", halting={"kind": "halter"}).halting
    assert part.eps == 0.01
    for low, high in ((0.05, 0.3), (0.3, 0.9)):  # the public cost is the sum of p while running: about 1 whatever the steps
        slow, fast = (float(part.ponder_cost(torch.full((1, 1, 30), p))) for p in (low, high))
        assert slow > fast + 1


FIXED = {"kind": "uniform", "least": 3, "most": 3}

# what a run's objective trains is what it is validated and saved by


@pytest.mark.parametrize("halting", ["act", "halter", "universal-act"])
def test_a_ponder_run_is_validated_and_saved_by_the_mean_of_its_states(halting: str, tmp_path: Path) -> None:
    changes = {"vocab_size": 15, "halting": {"kind": halting, "bias": -1.0}, "read_out": "last"}
    model = {"kind": "preset", "name": "universal-tiny", "changes": changes}
    run = train(
        small({"objective": {"kind": "ponder"}, "model": model, "updates": 4, "validate": {"every": 2}, "depth": FIXED}),
        tmp_path / "run",
    )
    seen = [row["valid"]["3"] for row in rows_of(run) if "valid" in row]
    batch = run.splits.valid.batch(range(24))
    loaded = lw.load(tmp_path / "run")
    assert loaded.config.read_out == "expected" and "answers by the mean" in (run.checkpoint / "README.md").read_text()
    with torch.no_grad():
        found = loaded(batch.input_ids, labels=batch.labels, depth=3, attention_mask=batch.attention_mask)
        assert seen[-1]["loss"] == pytest.approx(float(found.loss), rel=1e-5)
        right = (found.logits[:, :-1].argmax(-1) == batch.labels[:, 1:]) | (batch.labels[:, 1:] == -100)
        assert seen[-1]["exact"] == pytest.approx(float(right.all(1).float().mean()))
        last = loaded(batch.input_ids, labels=batch.labels, depth=3, attention_mask=batch.attention_mask, select="last")
        assert abs(float(last.loss) - seen[-1]["loss"]) > 1e-4
    report = lw.evaluate(run, depths=[3], splits="valid")["valid"]
    assert report.loss[0] == pytest.approx(seen[-1]["loss"], rel=1e-5)


def test_an_exit_gate_run_is_judged_by_the_gates_loss(tmp_path: Path) -> None:
    lw.save(noisy("ouro-1.4b-tiny", vocab_size=15, std=0.3), tmp_path / "model")
    run = train(
        small(
            {
                "model": {"kind": "load", "source": str(tmp_path / "model")},
                "objective": {"kind": "exit-gate"}, "updates": 6, "validate": {"every": 2}, "depth": FIXED,
                "optim": {"lr": 1e-2, "weight_decay": 0.0, "parts": {"*": {"freeze": True}, "halting.*": {"freeze": False}}},
            }
        ),
        tmp_path / "run",
    )  # fmt: skip
    seen = [row["valid"]["3"] for row in rows_of(run) if "valid" in row]
    assert len({found["loss"] for found in seen}) == 1 and len({found["objective"] for found in seen}) == 3
    best = min(range(3), key=lambda i: seen[i]["objective"])
    assert run.progress.best_update == 2 * (best + 1) > 2 and run.progress.best_loss == seen[best]["objective"]
    model, batch = lw.load(tmp_path / "run"), run.splits.valid.batch(range(24))
    with torch.no_grad():
        own = ExitGateStage()(model, rollout(model, batch, Plan(3, 3)))[0]
    assert seen[-1]["objective"] == pytest.approx(float(own), rel=1e-5)
    assert Source(tmp_path / "run", checkpoint="best").folder.name == f"{run.progress.best_update:08d}"
