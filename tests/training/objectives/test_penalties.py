"""Penalties: the length of the last change told token by token, when a penalty counts, how it is weighed, what it costs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loopwright.data.batch import Batch
from loopwright.training.objectives.losses import EveryStep, Final
from loopwright.training.objectives.penalties import PENALTIES, StateChange, Weighted
from loopwright.training.rollout import Penalty, Plan, rollout
from loopwright.training.run import TrainingModule
from tests.cases import gap, noisy


def batch(padded: bool = True) -> Batch:
    ids = torch.randint(15, (3, 6), generator=torch.Generator().manual_seed(4))
    mask = torch.ones_like(ids)
    mask[0, 4:] = mask[2, :2] = 0
    return Batch(ids, torch.where(mask.bool(), ids, -100), mask) if padded else Batch(ids, ids)


class Counted(Penalty):
    """A penalty that says how often it was asked."""

    def __init__(self, value: float = 5.0) -> None:
        self.value, self.asked = value, 0

    def __call__(self, model, rollout):
        self.asked += 1
        return torch.tensor(self.value, requires_grad=True)


def weighted(penalty=None, **options) -> Weighted:
    return Weighted(penalty or Counted(), "counted", **options)


# the state change


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("depth", [1, 3])
def test_state_change_is_the_mean_length_of_the_last_change_of_real_tokens(padded, depth):
    model, data = noisy("huginn-tiny").double(), batch(padded)
    path = rollout(model, data, Plan(depth, depth))
    states = [path.start, *model(data.input_ids, attention_mask=data.attention_mask, depth=depth, output_steps=True).states]
    rows = [
        [
            sum((a - b) ** 2 for a, b in zip(states[-1][row, i].tolist(), states[-2][row, i].tolist(), strict=True)) ** 0.5
            for i in range(6)
            if data.valid[row, i]
        ]
        for row in range(3)
    ]
    assert sum(map(len, rows)) == (14 if padded else 18)
    assert StateChange()(model, path).item() == pytest.approx(sum(sum(row) / len(row) for row in rows) / 3, abs=1e-10)


def test_what_padding_holds_does_not_matter():
    model, data = noisy("stars-addition-tiny"), batch()
    other = Batch(torch.where(data.valid, data.input_ids, 7), data.labels, data.attention_mask)
    a, b = (StateChange()(model, rollout(model, x, Plan(3, 3))) for x in (data, other))
    assert a.item() == pytest.approx(b.item(), rel=1e-6)


def test_both_states_get_a_gradient_and_a_still_state_a_finite_one():
    model, data = noisy("stars-addition-tiny"), batch()
    path = rollout(model, data, Plan(3, 3))
    last, before = torch.autograd.grad(StateChange()(model, path), [path.last, path.before], retain_graph=True)
    # the gradient to the state before comes directly and through the last step
    through = torch.autograd.grad(path.last, path.before, last, retain_graph=True)[0]
    assert gap(before, through - last) < 1e-6
    assert (last[~data.valid] == 0).all() and last[data.valid].abs().max() > 0
    still = type(path)(**{**path.__dict__, "states": [path.before]})
    gradient = torch.autograd.grad(StateChange()(model, still), path.before)[0]
    assert torch.isfinite(gradient).all()


def test_half_precision_is_measured_in_full():
    model = noisy("stars-addition-tiny").to(torch.bfloat16)
    assert StateChange()(model, rollout(model, batch(), Plan(2, 2))).dtype == torch.float32


# the schedule


@pytest.mark.parametrize(
    ("options", "solved_at", "factors"),
    [
        ({}, None, {0: 0.1, 5000: 0.1}),
        ({"start": 2001}, None, {0: 0, 2000: 0, 2001: 0.1, 9999: 0.1}),  # the released rule: after update 2,000
        ({"ramp": 10}, None, {0: 0, 1: 0.01, 5: 0.05, 10: 0.1, 11: 0.1}),
        ({"start": 100, "ramp": 10}, None, {99: 0, 100: 0, 105: 0.05, 110: 0.1, 500: 0.1}),
        ({"start_accuracy": 0.99}, None, {0: 0, 10**6: 0}),
        ({"start_accuracy": 0.99}, 300, {299: 0, 300: 0.1}),
        ({"start_accuracy": 0.99, "start": 500, "ramp": 100}, 300, {300: 0, 500: 0, 550: 0.05, 600: 0.1}),
        ({"start_accuracy": 0.99, "start": 200, "ramp": 100}, 300, {299: 0, 350: 0.05, 400: 0.1}),
        ({"start": 5}, 300, {4: 0, 5: 0.1}),  # solved or not: nobody asked
    ],
)
def test_when_a_penalty_counts(options, solved_at, factors):
    penalty = weighted(weight=0.1, **options)
    assert {update: penalty.factor(update, solved_at) for update in factors} == pytest.approx(factors)


@given(
    start=st.integers(0, 50), ramp=st.integers(0, 50), weight=st.floats(0, 1), solved=st.one_of(st.none(), st.integers(0, 50)),
    bar=st.one_of(st.none(), st.just(0.9)),
)  # fmt: skip
def test_a_factor_only_grows_to_its_weight(start, ramp, weight, solved, bar):
    penalty = weighted(start=start, ramp=ramp, weight=weight, start_accuracy=bar)
    factors = [penalty.factor(update, solved) for update in range(160)]
    assert factors == sorted(factors) and min(factors) >= 0
    assert factors[-1] == (weight if bar is None or solved is not None else 0)


@given(st.floats(0, 1), st.floats(-5, 5), st.floats(-5, 5))
def test_both_weightings(factor, loss, value):
    a, b = torch.tensor(loss, dtype=torch.float64), torch.tensor(value, dtype=torch.float64)
    convex, added = weighted(weighting="convex"), weighted(weighting="add")
    assert convex.combine(a, b, factor).item() == pytest.approx((1 - factor) * loss + factor * value)
    assert added.combine(a, b, factor).item() == pytest.approx(loss + factor * value)


# the sum


def total(model, data, plan, objective, penalties, solved_at=None):
    factors = [penalty.factor(plan.update, solved_at) for penalty in penalties]
    return TrainingModule(model, objective, penalties)(data, plan, weights=[factor if factor > 0 else None for factor in factors])


def test_the_total_is_the_objective_with_each_penalty_weighed_in():
    model, data, plan = noisy("stars-addition-tiny"), batch(), Plan(3, 3, update=7)
    path = rollout(model, data, plan)
    plain, plain_metrics = EveryStep()(model, path)
    change = StateChange()(model, path)
    penalties = [Weighted(StateChange(), "state-change", weight=0.2), weighted(weight=3.0, weighting="add", start=7)]
    loss, metrics = total(model, data, plan, EveryStep(), penalties)
    assert loss.item() == pytest.approx((0.8 * plain + 0.2 * change + 3 * 5.0).item(), rel=1e-6)
    assert set(metrics) == {*plain_metrics, "objective", "state-change", "counted"}
    assert metrics["objective"].item() == plain.item() and metrics["state-change"].item() == change.item()
    assert not any(value.requires_grad for value in metrics.values())
    loss.backward()
    assert model.core[0].mlp.up_proj.weight.grad.abs().sum() > 0


def test_a_penalty_that_rode_along_is_weighed_in():
    model, data, plan = noisy("stars-addition-tiny"), batch(), Plan(3, 3)
    penalty = Weighted.build({"kind": "jacobian", "share": 1.0, "weight": 0.3}, PENALTIES)
    path = rollout(model, data, plan, hook=penalty.hook)
    loss, metrics = total(model, data, plan, Final(), [penalty])
    assert path.probe is not None and metrics["jacobian"].item() == path.probe.item() > 0
    assert loss.item() == pytest.approx((0.7 * Final()(model, path)[0] + 0.3 * path.probe).item(), rel=1e-6)


def test_a_penalty_that_does_not_count_is_not_computed():
    model, data = noisy("stars-addition-tiny"), batch()
    penalties = [
        Weighted(Counted(), "late", start=9), Weighted(Counted(), "slow", ramp=5), Weighted(Counted(), "bar", start_accuracy=0.5),
    ]  # fmt: skip
    for update, solved_at, asked in [(0, None, [0, 0, 0]), (8, None, [0, 1, 0]), (9, 9, [1, 2, 1])]:
        plan = Plan(2, 2, update=update)
        loss, metrics = total(model, data, plan, Final(), penalties, solved_at)
        assert [p.penalty.asked for p in penalties] == asked
        if update == 0:
            assert loss.item() == Final()(model, rollout(model, data, plan))[0].item() and not {"late", "slow", "bar"} & set(
                metrics
            )


# as written in a recipe


def test_options_of_penalty_and_schedule_stand_side_by_side():
    spec = {"kind": "jacobian", "mode": "exact", "weight": 0.05, "weighting": "add", "start": 10, "ramp": 4, "start_accuracy": 0.9}
    Weighted.check("penalties[0]", spec, PENALTIES)
    found = Weighted.build(spec, PENALTIES)
    assert isinstance(found.penalty, PENALTIES["jacobian"]) and found.name == "jacobian"
    assert (found.weight, found.weighting, found.start, found.ramp, found.start_accuracy) == (0.05, "add", 10, 4, 0.9)
    assert found.hook is found.penalty
    assert Weighted.build({"kind": "jacobian", "mode": "released"}, PENALTIES).hook is None
    plain = Weighted.build({"kind": "state-change"}, PENALTIES)
    assert isinstance(plain.penalty, StateChange) and plain.hook is None


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("jacobian", "penalties.*not a mapping"),
        ({"weight": 0.1}, "not a mapping with a 'kind'"),
        ({"kind": "jacobean"}, "unknown kind 'jacobean'; did you mean 'jacobian'"),
        ({"kind": ["jacobian"]}, "unknown kind"),
        ({"kind": "state-change", "wieght": 0.1}, r"penalties\[0\] \(state-change\): unknown 'wieght'; did you mean 'weight'"),
        ({"kind": "state-change", "name": "x"}, "unknown 'name'"),
        ({"kind": "state-change", "penalty": "x"}, "unknown 'penalty'"),
        ({"kind": "state-change", "weight": "much"}, "weight is 'much'; allowed: a number"),
        ({"kind": "state-change", "start": 1.5}, "start is 1.5; allowed: a whole number"),
        ({"kind": "state-change", "weighting": "sum"}, "weighting is 'sum'; allowed: add, convex"),
        ({"kind": "state-change", "weight": 1.5}, r"weight must be >= 0 and <= 1 \(got 1.5\)"),
        ({"kind": "state-change", "weight": -1.0, "weighting": "add"}, r"weight must be >= 0 \(got -1.0\)"),
        ({"kind": "state-change", "start": -1}, r"start must be >= 0 \(got -1\)"),
        ({"kind": "state-change", "ramp": -1}, r"ramp must be >= 0 \(got -1\)"),
        ({"kind": "state-change", "start_accuracy": 99.0}, "start_accuracy is 99.0; allowed: above 0 and at most 1"),
    ],
)
def test_wrong_specs_are_refused(spec, complaint):
    with pytest.raises(ValueError, match=complaint):
        Weighted.check("penalties[0]", spec, PENALTIES)
