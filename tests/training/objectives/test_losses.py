"""Each objective against its equation, told token by token in plain Python from the model's own logits and halting values."""

import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

import loopwright as lw
from loopwright.data.batch import Batch
from loopwright.model.config import LoopedConfig
from loopwright.model.parts.halting import ExitGate
from loopwright.model.passes import next_token_loss
from loopwright.schema import build_kind, check_kind
from loopwright.training.objectives.losses import OBJECTIVES, exit_log_probabilities
from loopwright.training.rollout import Plan, Rollout, rollout
from tests.cases import gap, golden_folders, noisy

TEACHER = {"kind": "preset", "name": "ouro-1.4b-tiny"}
SPECS = {
    "final": {"z_loss": 0.3}, "every-step": {"weights": "linear"}, "expected-exit": {"beta": 0.2},
    "exit-gate": {"slope": 7.0, "threshold": 0.02}, "ponder": {"weight": 0.4}, "distil": {"teacher": TEACHER}, "shortcut": {},
    "grpo": {"reward": "exact", "credit": "uniform"},
}  # fmt: skip
FITTING = [
    ("final", "stars-addition-tiny"), ("final", "huginn-tiny"), ("every-step", "stars-addition-tiny"),
    ("every-step", "huginn-tiny"), ("every-step", "ouroboros-qwen2.5-3b-tiny"), ("expected-exit", "ouro-1.4b-tiny"),
    ("exit-gate", "ouro-1.4b-tiny"), ("ponder", "universal-tiny"), ("distil", "retrofit-llama-1b-tiny"),
    ("shortcut", "huginn-tiny"), ("grpo", "stars-addition-tiny"),
]  # fmt: skip


def objective(kind: str, **options):
    spec = {"kind": kind, **(options or SPECS[kind])}
    check_kind("objective", spec, OBJECTIVES)
    return build_kind(spec, OBJECTIVES)


def ragged(lengths=(7, 5, 4), prompt=2, side="right", vocab=15, seed=0) -> Batch:
    """Rows of these lengths, padded, the prompt not asked for, the last row not at all."""
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    ids = torch.randint(vocab, (len(lengths), width), generator=generator)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
    for row, length in enumerate(lengths):
        first = 0 if side == "right" else width - length
        mask[row, first : first + length] = 1
        if row < len(lengths) - 1:
            labels[row, first + prompt : first + length] = ids[row, first + prompt : first + length]
    return Batch(ids, labels, mask)


def told(model, batch: Batch, depth: int) -> list[list[float]]:
    """Returns the cross-entropies [step][target], one number at a time."""
    out = model(batch.input_ids, attention_mask=batch.attention_mask, depth=depth, output_steps=True)
    return [[told_loss(logits[b, i - 1].tolist(), int(batch.labels[b, i])) for b, i in places(batch)] for logits in out.step_logits]


def told_loss(logits: list[float], target: int) -> float:
    return math.log(sum(math.exp(x) for x in logits)) - logits[target]


def places(batch: Batch) -> list[tuple[int, int]]:
    rows, width = batch.labels.shape
    return [(b, i) for b in range(rows) for i in range(1, width) if batch.labels[b, i] != -100]


def halts(model, batch: Batch, depth: int) -> list[list[float]]:
    """Returns the halting values [target][step]."""
    out = model(batch.input_ids, attention_mask=batch.attention_mask, depth=depth, output_steps=True)
    values = model.halting.values(out.states)
    return [values[b, i - 1].tolist() for b, i in places(batch)]


def mean(numbers) -> float:
    numbers = list(numbers)
    return sum(numbers) / len(numbers)


def built(name: str, **changes):
    return noisy(name, seed=3, **changes).double()


def rolled(model, batch: Batch, depth: int, grad_steps: int | None = None, update: int = 0) -> Rollout:
    return rollout(model, batch, Plan(depth, grad_steps or depth, update))


def check_value(found: tuple[Tensor, dict[str, Tensor]], loss: float, **metrics: float) -> None:
    assert found[0].item() == pytest.approx(loss, abs=1e-10)
    for name, value in metrics.items():
        assert found[1][name].item() == pytest.approx(value, abs=1e-10), name


# the equations


@pytest.mark.parametrize("side", ["right", "left"])
def test_final_is_the_last_steps_cross_entropy_and_the_squared_log_normaliser(side):
    model, batch = built("huginn-tiny"), ragged(side=side)
    last = mean(told(model, batch, 3)[-1])
    logits = model(batch.input_ids, attention_mask=batch.attention_mask, depth=3).logits
    z = mean(math.log(sum(math.exp(x) for x in logits[b, i - 1].tolist())) ** 2 for b, i in places(batch))
    check_value(objective("final", z_loss=0.3)(model, rolled(model, batch, 3)), last + 0.3 * z, loss_last=last, z=z)
    check_value(objective("final", z_loss=0.0)(model, rolled(model, batch, 3)), last, loss_last=last, z=z)


def test_final_two_ahead_is_what_labels_shifted_twice_train():
    """The public Ouroboros code: inputs chunk[:-1], labels chunk[1:], and a model that shifts once more."""
    model, ids = noisy("huginn-tiny", vocab_size=15), ragged(lengths=(7, 7)).input_ids
    batch = Batch(ids, ids.clone())
    twice = next_token_loss(model(ids[:, :-1], depth=2).logits, ids[:, 1:])
    assert objective("final", ahead=2)(model, rolled(model, batch, 2))[0].item() == pytest.approx(twice.item(), rel=1e-5)
    once = objective("final", ahead=1)(model, rolled(model, batch, 2))[0]
    assert once.item() == pytest.approx(model(ids, depth=2, labels=ids).loss.item(), rel=1e-5)
    with pytest.raises(ValueError, match=r"ahead must be a whole number >= 1 \(got 0\)"):
        objective("final", ahead=0)


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({"weights": "uniform"}, [1, 1, 1, 1]),
        ({"weights": "linear"}, [1, 2, 3, 4]),
        ({"weights": "geometric", "ratio": 0.5}, [1, 2, 4, 8]),
        ({"weights": [3, 1]}, [0, 0, 3, 1]),
        ({"weights": [9, 0, 1, 2, 5]}, [0, 1, 2, 5]),
    ],
)
@pytest.mark.parametrize("name", ["stars-addition-tiny", "huginn-tiny"])
def test_every_step_is_a_weighted_mean_over_steps(name, options, weights):
    model, batch = built(name), ragged()
    steps = [mean(losses) for losses in told(model, batch, 4)]
    loss = sum(w * x for w, x in zip(weights, steps, strict=True)) / sum(weights)
    first = next(t for t in range(4) if not isinstance(options["weights"], list) or t >= 4 - len(options["weights"]))
    found = objective("every-step", **options)(model, rolled(model, batch, 4))
    check_value(found, loss, loss_last=steps[-1], loss_first=steps[first])


def test_every_step_takes_the_steps_that_have_a_gradient():
    model, batch = built("stars-addition-tiny"), ragged()
    steps = [mean(losses) for losses in told(model, batch, 5)]
    found = objective("every-step", weights="linear")(model, rolled(model, batch, 5, grad_steps=2))
    check_value(found, (steps[3] + 2 * steps[4]) / 3, loss_first=steps[3])


def told_exits(lambdas: list[float]) -> list[float]:
    left, found = 1.0, []
    for value in lambdas[:-1]:
        found.append(left * value)
        left *= 1 - value
    return [*found, left]


def told_expected_exit(losses: list[list[float]], lambdas: list[list[float]], beta: float) -> tuple[float, float, float]:
    """Returns loss, entropy and mean exit step for losses [step][target] and λ [target][step]."""
    exits = [told_exits(row) for row in lambdas]
    entropy = [-sum(q * math.log(q) for q in p) for p in exits]
    expected = [sum(q * losses[t][i] for t, q in enumerate(p)) for i, p in enumerate(exits)]
    loss = mean(x - beta * h for x, h in zip(expected, entropy, strict=True))
    return loss, mean(entropy), mean(sum(t * q for t, q in enumerate(p)) for p in exits)


@pytest.mark.parametrize("depth", [1, 4])
def test_expected_exit_weighs_each_steps_loss_by_the_gate_and_rewards_entropy(depth):
    model, batch = built("ouro-1.4b-tiny"), ragged(side="left")
    loss, entropy, step = told_expected_exit(told(model, batch, depth), halts(model, batch, depth), 0.2)
    check_value(objective("expected-exit", beta=0.2)(model, rolled(model, batch, depth)), loss, entropy=entropy, exit_step=step)


@pytest.mark.parametrize("folder", golden_folders("ouro-mha", "ouro-gqa"), ids=lambda f: f"{f.parts[-3]}-{f.name}")
def test_expected_exit_on_the_released_layout(folder):
    """The golden files hold each step's logits and the exit distribution; the objective's value follows from them."""
    golden = load_file(folder / "golden.safetensors")
    names = json.loads((folder / "case.json").read_text())["inputs"]
    ids, mask = golden["input_ids"], golden["attention_mask"] if "attention_mask" in names else None
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    after = torch.cat([torch.zeros_like(real[:, :1]), real[:, :-1]], dim=1)  # nothing is asked of padding
    batch = Batch(ids, torch.where(real & after, ids, -100), mask)
    asked = places(batch)
    logits, lambdas = golden["step_logits"], golden["exit_lambda"]
    losses = [[told_loss(step[b, i - 1].tolist(), int(ids[b, i])) for b, i in asked] for step in logits]
    loss, entropy, _ = told_expected_exit(losses, [lambdas[b, i - 1].tolist() for b, i in asked], 0.05)
    model = lw.load(folder)
    found = objective("expected-exit", beta=0.05)(model, rolled(model, batch, len(logits)))
    assert found[0].item() == pytest.approx(loss, abs=1e-5)
    assert found[1]["entropy"].item() == pytest.approx(entropy, abs=1e-5)


def test_expected_exit_has_the_gradient_of_the_models_own_probabilities():
    model, batch = built("ouro-1.4b-tiny"), ragged()
    path = rolled(model, batch, 3)
    loss, _ = objective("expected-exit", beta=0.2)(model, path)
    p = model.halting(model.halting.values(path.states))
    wanted = batch.labels[:, 1:] != -100
    following = batch.input_ids[:, 1:, None]
    steps = [-model.read_out(s, path.p).log_softmax(-1)[:, :-1].gather(-1, following)[..., 0] for s in path.states]
    plain = ((p[:, :-1] * torch.stack(steps, -1)).sum(-1) + 0.2 * (p * p.log()).sum(-1)[:, :-1])[wanted].mean()
    parameters = list(model.parameters())
    for a, b in zip(*(torch.autograd.grad(x, parameters, retain_graph=True) for x in (loss, plain)), strict=True):
        assert gap(a, b) < 1e-10


@pytest.mark.parametrize("bias", [-300.0, 300.0])
def test_a_gate_that_is_sure_of_itself_has_finite_gradients(bias):
    model, batch = noisy("ouro-1.4b-tiny"), ragged()
    torch.nn.init.constant_(model.halting.proj.bias, bias)
    for kind in ("expected-exit", "exit-gate"):
        model.zero_grad()
        loss, metrics = objective(kind)(model, rolled(model, batch, 4))
        loss.backward()
        assert all(torch.isfinite(x).all() for x in (loss, *metrics.values()))
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@given(st.integers(1, 6), st.integers(0, 10**6))
@settings(max_examples=25)
def test_exit_log_probabilities_are_those_of_the_models_gate(steps, seed):
    gate = torch.randn(steps, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    model_gate = ExitGate(LoopedConfig(hidden_size=8))
    assert gap(exit_log_probabilities(gate).exp(), model_gate(torch.sigmoid(gate.T)[None])[0].T) < 1e-12


@pytest.mark.parametrize("depth", [2, 4])
def test_exit_gate_learns_to_go_on_where_the_last_step_helped(depth):
    model, batch = built("ouro-1.4b-tiny"), ragged()
    losses, lambdas = told(model, batch, depth), halts(model, batch, depth)
    terms, gains, aims = [], [], []
    for i in range(batch.targets):
        for t in range(1, depth):
            gain = max(0.0, losses[t - 1][i] - losses[t][i])
            aim = 1 / (1 + math.exp(-7.0 * (gain - 0.02)))
            leave = lambdas[i][t]
            terms.append(-(aim * math.log(1 - leave) + (1 - aim) * math.log(leave)))
            gains.append(gain)
            aims.append(aim)
    found = objective("exit-gate", slope=7.0, threshold=0.02)(model, rolled(model, batch, depth))
    told_loss = sum(terms) / (depth * batch.targets)  # eq. 6 divides by all steps
    check_value(found, told_loss, loss_last=mean(losses[-1]), improvement=mean(gains), **{"continue": mean(aims)})


def test_exit_gate_leaves_the_language_model_without_a_gradient():
    model, batch = built("ouro-1.4b-tiny"), ragged()
    objective("exit-gate")(model, rolled(model, batch, 4))[0].backward()
    with_gradient = {name for name, p in model.named_parameters() if p.grad is not None and (p.grad != 0).any()}
    assert with_gradient == {"halting.proj.weight", "halting.proj.bias"}


def test_exit_gate_compares_nothing_in_a_walk_of_one_step():
    model, batch = built("ouro-1.4b-tiny"), ragged()
    loss, metrics = objective("exit-gate")(model, rolled(model, batch, 1))
    loss.backward()
    assert loss.item() == metrics["improvement"].item() == 0
    assert (model.halting.proj.weight.grad == 0).all()


def test_ponder_reads_the_mean_state_and_charges_steps_and_remainder():
    model, batch = built("universal-tiny", halting={"kind": "act"}), ragged(side="left")
    torch.nn.init.constant_(model.halting.bias, -2.0)
    out = model(batch.input_ids, attention_mask=batch.attention_mask, depth=4, select="expected", labels=batch.labels)
    costs, stops = [], set()
    for row in halts(model, batch, 4):
        total, n = 0.0, 0
        while n < 3 and total + row[n] < 1 - model.halting.eps:
            total, n = total + row[n], n + 1
        costs.append(n + 1 + 1 - total)
        stops.add(n)
    loss, cost = out.loss.item(), mean(costs)
    assert len(stops) > 1  # not all tokens stop alike
    check_value(objective("ponder", weight=0.4)(model, rolled(model, batch, 4)), loss + 0.4 * cost, loss_last=loss, ponder=cost)


# what holds for all


@pytest.mark.parametrize(("kind", "name"), FITTING, ids=lambda x: x)
@pytest.mark.parametrize("depth", [1, 3])
def test_loss_and_gradients_are_finite_and_metrics_have_names_of_their_own(kind, name, depth):
    model, batch = noisy(name).train(), ragged()
    loss, metrics = objective(kind)(model, rolled(model, batch, depth))
    loss.backward()
    assert loss.shape == () and torch.isfinite(loss)
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())
    if not (kind == "exit-gate" and depth == 1):
        assert sum(p.grad.abs().sum() for p in model.parameters() if p.grad is not None) > 0
    assert all(value.shape == () and not value.requires_grad and torch.isfinite(value) for value in metrics.values())
    assert set(metrics) == set(objective(kind)(model, rolled(model, batch, 4))[1])  # one log line adds batches of all depths
    assert OBJECTIVES[kind].reads in ("every", "last")


@pytest.mark.parametrize(("kind", "name"), FITTING, ids=lambda x: x)
@given(lengths=st.lists(st.integers(3, 8), min_size=2, max_size=3), side=st.sampled_from(["right", "left"]))
@settings(max_examples=2)
def test_padded_rows_weigh_what_they_weigh_alone(kind, name, lengths, side):
    model, batch = built(name), ragged((*lengths, 4), side=side)
    aim = objective(kind)
    whole = aim(model, rolled(model, batch, 3))[0].item()
    total = 0.0
    for row, length in enumerate((*lengths, 4)):
        real = slice(0, length) if side == "right" else slice(batch.labels.shape[1] - length, None)
        alone = Batch(batch.input_ids[row : row + 1, real], batch.labels[row : row + 1, real])
        total += aim(model, rolled(model, alone, 3))[0].item() * alone.targets
    assert whole == pytest.approx(total / batch.targets, abs=1e-5 if kind == "distil" else 1e-9)  # the teacher is float32


@pytest.mark.parametrize(("kind", "name"), FITTING, ids=lambda x: x)
def test_a_batch_without_targets_gives_zero(kind, name):
    model, batch = noisy(name), ragged()
    loss, metrics = objective(kind)(model, rolled(model, replace(batch, labels=torch.full_like(batch.labels, -100)), 3))
    loss.backward()
    assert loss.item() == 0 and all(value.item() == 0 for value in metrics.values())
    assert all(p.grad is None or (p.grad == 0).all() for p in model.parameters())
    assert any(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(("kind", "name"), FITTING, ids=lambda x: x)
def test_half_precision_gives_about_the_same(kind, name):
    model, batch = noisy(name), ragged()
    full = objective(kind)(model, rolled(model, batch, 2))[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = objective(kind)(model, rolled(model, batch, 2))[0]
    half.backward()
    assert half.dtype == torch.float32
    assert half.item() == pytest.approx(full.item(), rel=0.1, abs=0.1)
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize(
    ("kind", "name", "complaint"),
    [
        ("expected-exit", "huginn-tiny", r"objective \(expected-exit\): the model's halting is 'none'; .*'exit'"),
        ("expected-exit", "universal-tiny", r"halting is 'universal-act'; .*'exit'"),
        ("exit-gate", "stars-addition-tiny", r"objective \(exit-gate\): the model's halting is 'none'; .*'exit'"),
        ("ponder", "ouro-1.4b-tiny", r"objective \(ponder\): the model's halting is 'exit'; .*'act'"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(kind, name, complaint):
    model = lw.build(name)
    with pytest.raises(ValueError, match=complaint):
        objective(kind)(model, rolled(model, ragged(), 2))


@pytest.mark.parametrize(("kind", "name"), [("expected-exit", "ouro-1.4b-tiny"), ("ponder", "universal-tiny")])
def test_halting_needs_every_step(kind, name):
    model = lw.build(name)
    with pytest.raises(ValueError, match="2 of 4 steps have a gradient"):
        objective(kind)(model, rolled(model, ragged(), 4, grad_steps=2))


@pytest.mark.parametrize(
    ("kind", "options", "complaint"),
    [
        ("final", {"z_loss": -1.0}, r"z_loss must be >= 0 \(got -1.0\)"),
        ("every-step", {"weights": "linaer"}, "weights is 'linaer'; did you mean 'linear'"),
        ("every-step", {"weights": []}, r"weights is \[\]"),
        ("every-step", {"weights": [1.0, 0.0]}, "the last above 0"),
        ("every-step", {"weights": [-1.0, 1.0]}, "at least 0"),
        ("every-step", {"ratio": 0.0}, r"ratio must be > 0 \(got 0.0\)"),
        ("expected-exit", {"beta": -0.1}, r"beta must be >= 0 \(got -0.1\)"),
        ("exit-gate", {"slope": 0.0}, r"slope must be > 0 \(got 0.0\)"),
        ("ponder", {"weight": -1.0}, r"weight must be >= 0 \(got -1.0\)"),
        ("every-step", {"weight": "linear"}, "did you mean 'weights'"),
    ],
)
def test_wrong_options_are_refused(kind, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        objective(kind, **options)


def test_every_kind_is_tested():
    assert set(SPECS) == {kind for kind, _ in FITTING} == set(OBJECTIVES) - {"given"}
