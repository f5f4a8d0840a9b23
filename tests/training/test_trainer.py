"""GRPO through TRL itself. Needs the `rl` and `data` extras: `pip install -e '.[dev,rl]'`, then `pytest -m ecosystem -n 0`."""

import pytest
import torch

import loopwright as lw
from loopwright.schema import build_kind, merge
from loopwright.training.depth import RULES
from loopwright.training.recipe import make_recipe
from loopwright.training.trainable import drawn_plans
from tests.generation.tiny import letter_tokenizer
from tests.own_kinds import own_kinds
from tests.training.objectives.test_grpo import letter_chats
from tests.training.runs import PLAIN, untimed

pytestmark = pytest.mark.ecosystem
GRPO = {
    "updates": 6, "batch": 16, "accumulate": 2, "depth": {"kind": "uniform", "least": 1, "most": 3},
    "objective": {"kind": "grpo", "reward": "length", "group": 4, "beta": 0.05, "credit": "linear"},
    "average": {"kind": "ema", "decay": 0.8}, "schedule": {"kind": "wsd", "warmup": 3, "decay": 2},
    "validate": {"every": 3, "depths": [1, 2], "rows": 8}, "save": {"every": 2, "best": False, "keep": 9},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _rewards():
    pytest.importorskip("trl")
    with own_kinds():

        @lw.register("reward", "length")
        def length(sample):
            return len(sample.completion)

        yield


def run(folder, changes=None, **options):
    recipe = merge(merge(PLAIN, GRPO), changes or {})
    return lw.train(recipe, out=folder, progress=False, **options)


def tensors(outcome):
    return {name: x.detach().clone() for name, x in outcome.model.state_dict().items()}


def test_a_run_is_one_of_ours(tmp_path):
    outcome = run(tmp_path / "run")
    rows = [row for row in outcome.log() if "loss" in row]
    recipe = make_recipe(merge(PLAIN, GRPO))
    plans = [plan.depth for plan in drawn_plans(build_kind(recipe.depth, RULES), recipe)]
    assert [depth for row in rows for depth in row["depth"]] == plans
    assert [row["update"] for row in rows] == list(range(6)) and all(row["tokens"] > row["targets"] > 0 for row in rows)
    assert rows[0]["kl"] == 0 and rows[-1]["kl"] > 0
    assert [row["update"] for row in outcome.log() if "valid" in row] == [2, 5]
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir()) == ["00000002", "00000004", "00000006"]
    # nothing of TRL's is left on the model or in its folder
    plain = run(tmp_path / "plain", {"objective": {"kind": "final"}, "updates": 1})
    for name in ("config", "generation_config"):
        assert getattr(outcome.model, name).to_dict() == getattr(plain.model, name).to_dict()
    assert "forward" not in vars(outcome.model) and set(vars(outcome.model)) == set(vars(plain.model))
    files = [next(iter((tmp_path / name / "checkpoints").iterdir())) / "config.json" for name in ("run", "plain")]
    assert files[0].read_bytes() == files[1].read_bytes()
    ids = torch.arange(6)[None]
    loaded = lw.load(tmp_path / "run", weights="raw")
    assert torch.equal(loaded(ids, depth=2).logits, outcome.model(ids, depth=2).logits)


def test_resumed_is_uninterrupted_bit_for_bit(tmp_path):
    whole = run(tmp_path / "whole")
    part = run(tmp_path / "part", on_update=lambda row: row["update"] == 2)
    assert not part.finished and part.progress.update == 3
    part = run(tmp_path / "part", resume=True)
    assert [untimed(row) for row in part.log()] == [untimed(row) for row in whole.log()]
    found, wanted = tensors(part), tensors(whole)
    assert all(torch.equal(found[name], x) for name, x in wanted.items())


def test_answers_of_many_lengths_resume_and_the_tokenizer_is_left_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    records = [{"question": "ab", "answer": "c" * (20 if row == 0 else 2)} for row in range(24)]
    data = letter_chats(tmp_path / "data", records)
    assert letter_tokenizer().pad_token is None
    recipe = {
        **merge(PLAIN, GRPO),
        "data": data,
        "model": {"kind": "preset", "name": "huginn-tiny", "changes": {"core_layers": 1}},
        "order": {"shuffled": False},
    }
    whole = lw.train(recipe, out=tmp_path / "whole", progress=False)
    part = lw.train(recipe, out=tmp_path / "part", progress=False, on_update=lambda row: row["update"] == 2)
    assert not part.finished
    part = lw.train(recipe, out=tmp_path / "part", progress=False, resume=True)
    assert [untimed(row) for row in part.log()] == [untimed(row) for row in whole.log()]
    assert next(row["kl"] for row in whole.log() if "loss" in row) == pytest.approx(0, abs=1e-7)  # both from the same noise
    assert all(torch.equal(tensors(part)[name], x) for name, x in tensors(whole).items())
    for kept in (tmp_path / "whole" / "checkpoints").iterdir():
        assert lw.tokenizer(kept).pad_token is None


@pytest.mark.parametrize("bad", [float("nan"), ZeroDivisionError("no")])
def test_a_reward_that_fails_loses_nothing(tmp_path, bad):
    whole, calls = run(tmp_path / "whole"), []

    @lw.register("reward", "length", replace=True)
    def length(sample):
        calls.append(sample)
        if len(calls) == 3 * 16 + 12:  # the second batch of the fourth update
            if isinstance(bad, Exception):
                raise bad
            return bad
        return len(sample.completion)

    with pytest.raises(ValueError, match=r"update 3: reward \(length\).*saved in .*00000003") as error:
        run(tmp_path / "run")
    assert "\n" not in str(error.value)
    again = run(tmp_path / "run", resume=True)
    assert [untimed(row) for row in again.log()] == [untimed(row) for row in whole.log()]
    assert all(torch.equal(tensors(again)[name], x) for name, x in tensors(whole).items())


def test_log_likelihoods_are_trls_own(tmp_path):
    """Where the last step earns the credit, TRL's own pass through the model (its fused head) gives the same numbers."""
    from trl import GRPOTrainer

    from loopwright.training import trl_trainer as ours

    seen = []
    plain = ours.LoopedGRPO._get_per_token_logps_and_entropies

    def both(self, model, ids, mask, kept, *rest, **more):
        found = plain(self, model, ids, mask, kept, *rest, **more)
        model.config.depth = self.at.depth
        theirs = GRPOTrainer._get_per_token_logps_and_entropies(self, model, ids, mask, kept, compute_entropy=True)
        real = mask[:, -kept:].bool()
        seen.append(max(float((a - b).detach()[real].abs().max()) for a, b in zip(found[:2], theirs[:2], strict=True)))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ours.LoopedGRPO, "_get_per_token_logps_and_entropies", both)
        run(tmp_path / "run", {"objective": {"credit": "last", "beta": 0.0, "temperature": 0.7}})
    assert len(seen) == 12 and max(seen) < 1e-4


def test_what_is_rewarded_becomes_likelier(tmp_path):
    changes = {"updates": 30, "optim": {"lr": 1e-2}, "accumulate": 1, "objective": {"beta": 0.0}, "save": {"every": 0}}
    rows = [row for row in run(tmp_path / "run", changes).log() if "loss" in row]
    assert rows[-1]["reward"] > rows[0]["reward"] + 1


def test_the_divergence_is_that_of_the_last_step_alone(tmp_path, monkeypatch):
    """Of every batch: what is added to TRL's loss is beta · k3 of the last step's read-outs, whatever earns the credit."""
    from loopwright.training import trl_trainer as ours

    seen, kept = [], {}
    plain, loss_of = ours.LoopedGRPO._get_per_token_logps_and_entropies, ours.LoopedGRPO.compute_loss

    def likelihoods(self, model, *given, **more):
        found = plain(self, model, *given, **more)
        kept["reference" if self.accelerator.unwrap_model(model) is not self.job.model else "credited"] = found[0]
        return found

    def loss(self, model, inputs, *given, **more):
        with_it = loss_of(self, model, inputs, *given, **more)
        reference = inputs["ref_per_token_logps"]
        assert sorted(reference.tolist()) == sorted(kept["reference"].tolist())  # TRL mixes the rows in between
        mask, apart = inputs["completion_mask"], reference - self.last
        assert torch.equal(self.last, kept["credited"]) is (self.at.depth == 1)
        k3 = ((apart.exp() - apart - 1) * mask).sum(1) / mask.sum(1)
        beta, self.beta = self.beta, 0.0
        without = loss_of(self, model, inputs, *given, **more)
        self.beta = beta
        self.losses.pop()
        seen.append(float((with_it - without - beta * k3.mean() / 2).detach().abs()))
        return with_it

    monkeypatch.setattr(ours.LoopedGRPO, "_get_per_token_logps_and_entropies", likelihoods)
    monkeypatch.setattr(ours.LoopedGRPO, "compute_loss", loss)
    run(tmp_path / "run")
    assert len(seen) == 12 and max(seen) < 1e-6


def gradients(loss, model):
    found = torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad], retain_graph=True, allow_unused=True)
    return torch.cat([x.flatten() for x in found if x is not None])


def test_where_the_last_step_earns_the_credit_the_divergence_is_trls_without_its_bias_correction(tmp_path, monkeypatch):
    """Of every batch, value and gradient, for both settings of TRL's `use_bias_correction_kl`: ours is one of them, by name."""
    from trl import GRPOTrainer

    from loopwright.training import trl_trainer as ours

    seen = []
    loss_of = ours.LoopedGRPO.compute_loss

    def loss(self, model, inputs, *given, **more):
        assert self.args.use_bias_correction_kl is False
        found = loss_of(self, model, inputs, *given, **more)
        own, theirs = gradients(found, self.job.model), {}
        for corrected in (False, True):
            self.args.use_bias_correction_kl = corrected
            value = GRPOTrainer.compute_loss(self, model, inputs, *given, **more)
            theirs[corrected] = value, gradients(value, self.job.model)
        self.args.use_bias_correction_kl = False
        # the corrected estimate told apart: the same value, times a ratio of 1 that has a gradient
        mask, last = inputs["completion_mask"], self.last
        k3 = ours.kl_estimate(last, inputs["ref_per_token_logps"])
        ratio = (last - last.detach()).exp()
        extra = self.beta * (((k3.detach() * ratio) * mask).sum(1) / mask.sum(1)).mean() / self.job.recipe.accumulate
        told = own + gradients(extra, self.job.model)
        size = own.norm()
        seen.append({
            "value": max(float((found - value).abs()) for value, _ in theirs.values()),
            "plain": float((own - theirs[False][1]).norm() / size),
            "corrected": float((told - theirs[True][1]).norm() / size),
            "apart": float((own - theirs[True][1]).norm() / size),
        })  # fmt: skip
        return found

    monkeypatch.setattr(ours.LoopedGRPO, "compute_loss", loss)
    objective = {"credit": "last", "beta": 2.0}
    run(tmp_path / "run", {"objective": objective, "optim": {"lr": 2e-2}, "average": None, "validate": {"every": 0}})
    assert len(seen) == 12
    assert max(one["value"] for one in seen) < 1e-5 and max(one["plain"] for one in seen) < 1e-5
    assert max(one["corrected"] for one in seen) < 1e-5
    assert max(one["apart"] for one in seen) > 1e-2  # so that the test tells them apart
