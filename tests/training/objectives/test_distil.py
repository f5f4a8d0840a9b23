"""Distillation against its equation told in plain Python; who gets a gradient and who must not; the teacher comes late."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loopwright as lw
from loopwright.data.batch import Batch
from loopwright.model.taps import Recorder
from loopwright.training.objectives.distil import Distil, Shortcut, distance, divergence
from loopwright.training.rollout import Plan, rollout
from tests.cases import gap, noisy

PRESET = {"kind": "preset", "name": "ouro-1.4b-tiny"}


def batch() -> Batch:
    ids = torch.randint(90, (3, 6), generator=torch.Generator().manual_seed(4))
    mask, labels = torch.ones_like(ids), ids.clone()
    labels[:, :2] = -100
    mask[1, 4:] = 0
    labels[1, 4:] = -100
    return Batch(ids, labels, mask)


def taught(model, **options) -> Distil:
    """Returns the objective with this model as its teacher."""
    objective = Distil(PRESET, **options)
    objective.teacher = model
    return objective


def told_softmax(logits: list[float], temperature: float) -> list[float]:
    powers = [math.exp(x / temperature) for x in logits]
    return [x / sum(powers) for x in powers]


def told_kl(a: list[float], b: list[float], temperature: float) -> float:
    p, q = told_softmax(a, temperature), told_softmax(b, temperature)
    return temperature**2 * sum(x * math.log(x / y) for x, y in zip(p, q, strict=True))


def told(logits, data: Batch) -> list[list[float]]:
    rows, width = data.labels.shape
    return [logits[b, i - 1].tolist() for b in range(rows) for i in range(1, width) if data.labels[b, i] != -100]


def told_loss(rows: list[list[float]], data: Batch) -> float:
    targets = data.labels[:, 1:][data.labels[:, 1:] != -100].tolist()
    return sum(-math.log(told_softmax(row, 1.0)[target]) for row, target in zip(rows, targets, strict=True)) / len(rows)


def logits_of(model, data: Batch, depth: int | None):
    return model(data.input_ids, attention_mask=data.attention_mask, depth=depth, output_steps=True).step_logits


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("depth", [None, 2])
def test_distillation_is_divergence_from_the_teacher_and_cross_entropy(temperature, depth):
    data = batch()
    student, teacher = noisy("huginn-tiny", seed=1).double(), noisy("ouro-1.4b-tiny", seed=2).double()
    objective = taught(teacher, temperature=temperature, weight=0.3, teacher_depth=depth)
    loss, metrics = objective(student, rollout(student, data, Plan(3, 3)))
    ours, theirs = told(logits_of(student, data, 3)[-1], data), told(logits_of(teacher, data, depth)[-1], data)
    kl = sum(told_kl(t, s, temperature) for t, s in zip(theirs, ours, strict=True)) / len(ours)
    assert metrics["kl"].item() == pytest.approx(kl, abs=1e-10)
    assert loss.item() == pytest.approx(kl + 0.3 * told_loss(ours, data), abs=1e-10)


def test_matching_compares_what_the_heads_read():
    data, student, teacher = batch(), noisy("huginn-tiny", seed=1), noisy("ouro-1.4b-tiny", seed=2)
    path = rollout(student, data, Plan(3, 3))
    plain, with_match = (taught(teacher, match=match)(student, path)[0] for match in (0.0, 0.7))
    a = student(data.input_ids, attention_mask=data.attention_mask, depth=3).last_hidden_state
    b = teacher(data.input_ids, attention_mask=data.attention_mask).last_hidden_state
    apart = ((a - b).pow(2).sum(-1) / b.pow(2).sum(-1))[:, :-1][data.labels[:, 1:] != -100].mean()
    assert (with_match - plain).item() == pytest.approx(0.7 * apart.item(), rel=1e-4)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_matching_layers_compares_the_last_ones_of_both(layers):
    """The student's coda of two layers, and before them the state its loop ends with; the last layers of a dense teacher."""
    data, student = batch(), noisy("huginn-tiny", seed=1)
    teacher = noisy("retrofit-llama-1b-tiny", seed=2).without_adapters()
    path = rollout(student, data, Plan(3, 3))
    found, metrics = taught(teacher, match=0.7, layers=layers)(student, path)
    plain = taught(teacher)(student, path)[0]
    seen, known = Recorder(("residual", "state")), Recorder(("residual",))
    student(data.input_ids, attention_mask=data.attention_mask, depth=3, tap=seen)
    teacher(data.input_ids, attention_mask=data.attention_mask, tap=known)
    ours = [seen.seen["state", "core", 2, 2], *(seen.seen["residual", "coda", 0, layer] for layer in range(2))][-layers:]
    theirs = list(known.seen.values())[-layers:]
    asked = data.labels[:, 1:] != -100
    apart = [((a - b).pow(2).sum(-1) / b.pow(2).sum(-1))[:, :-1][asked].mean() for a, b in zip(ours, theirs, strict=True)]
    wanted = sum(apart).item() / layers
    assert metrics["match"].item() == pytest.approx(wanted, rel=1e-4)
    assert (found - plain).item() == pytest.approx(0.7 * wanted, rel=1e-3)
    gradients = torch.autograd.grad(found - plain, [student.core[0].mlp.up_proj.weight, student.coda[1].mlp.up_proj.weight])
    assert all(g.abs().max() > 0 for g in gradients)


def test_distance_is_relative_and_wide():
    a, b = torch.tensor([[3.0, 0.0], [0.0, 0.0]]).bfloat16(), torch.tensor([[0.0, 4.0], [5.0, 0.0]]).bfloat16()
    assert distance(a, b).tolist() == [25 / 16, 1.0] and distance(a, b).dtype == torch.float32
    assert distance(b, b).tolist() == [0.0, 0.0]


def test_the_teacher_runs_in_the_precision_of_the_run_and_keeps_nothing():
    student, teacher, data = noisy("huginn-tiny"), noisy("ouro-1.4b-tiny", seed=2), batch()
    kinds = []

    def see(name, value, *, stack, step, layer):
        kinds.append((value.dtype, value.requires_grad))
        return value

    objective = taught(teacher, match=1.0)
    inner = teacher.embed
    teacher.embed = lambda *a, tap, **k: inner(*a, tap=see, **k)
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = objective(student, rollout(student, data, Plan(2, 2)))
    assert not any(kept for _, kept in kinds) and (torch.bfloat16, False) in kinds
    loss.backward()


def test_a_student_that_is_its_teacher_has_nothing_to_learn():
    model, data = noisy("ouro-1.4b-tiny"), batch()
    loss, metrics = taught(model, weight=0.0, match=1.0)(model, rollout(model, data, Plan(4, 4)))
    assert abs(loss.item()) < 1e-6 and abs(metrics["kl"].item()) < 1e-6
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    assert all(g is None or g.abs().max() < 1e-5 for g in gradients)


def test_the_teacher_gets_no_gradient_and_does_not_change():
    student, teacher, data = noisy("huginn-tiny"), noisy("ouro-1.4b-tiny"), batch()  # its parameters ask for gradients
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    taught(teacher, match=1.0)(student, rollout(student, data, Plan(2, 2)))[0].backward()
    assert all(p.grad is None for p in teacher.parameters())
    assert all(gap(value, before[name]) == 0 for name, value in teacher.state_dict().items())
    assert all(p.grad is not None for p in student.parameters())


def test_the_teacher_is_loaded_once_when_first_needed(tmp_path, monkeypatch):
    stored = noisy("ouro-1.4b-tiny", seed=5)
    lw.save(stored, tmp_path / "teacher")
    objective = Distil({"kind": "load", "source": str(tmp_path / "teacher")})
    assert objective.teacher is None
    student, data = lw.build("stars-addition-tiny", vocab_size=96).train(), batch()
    path = rollout(student, data, Plan(2, 2))
    torch.manual_seed(7)
    found = objective(student, path)[0]
    drawn = torch.rand(3)
    torch.manual_seed(7)
    assert gap(drawn, torch.rand(3)) == 0  # loading draws nothing from the run's own stream
    teacher = objective.teacher
    assert teacher is not None and not teacher.training and not any(p.requires_grad for p in teacher.parameters())
    assert objective(student, path)[0].item() == found.item() == taught(stored)(student, path)[0].item()
    assert objective.teacher is teacher


@pytest.mark.parametrize("teacher", ["no/such/folder", {"kind": "load", "source": "no/such/folder"}])
def test_a_teacher_that_is_not_there_stops_no_constructor(teacher):
    objective = Distil(teacher)
    with pytest.raises(FileNotFoundError, match="no/such/folder: there is no such folder"):
        objective.prepare(lw.build("ouro-1.4b-tiny"), "cpu")


def test_vocabulary_width_and_depth_must_fit():
    student, data = lw.build("stars-addition-tiny"), replace(batch(), input_ids=batch().input_ids % 15)
    with pytest.raises(ValueError, match=r"objective \(distil\): the teacher's vocabulary has 96 tokens; allowed: 15"):
        Distil(PRESET)(student, rollout(student, data, Plan(1, 1)))
    wide = Distil({"kind": "preset", "name": "ouro-1.4b-tiny", "changes": {"hidden_size": 64}}, match=0.1)
    student = lw.build("huginn-tiny")
    with pytest.raises(ValueError, match=r"match is 0.1, and the teacher's width is 64; allowed: 32"):
        wide(student, rollout(student, data, Plan(1, 1)))
    deep = Distil(PRESET, match=0.1, layers=4)
    with pytest.raises(ValueError, match="layers is 4; allowed: up to 3, the student's coda and the state before it"):
        deep(student, rollout(student, data, Plan(1, 1)))
    with pytest.raises(ValueError, match="depth: 0"):
        Distil(PRESET, teacher_depth=0).prepare(student, "cpu")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"teacher": {"kind": "load"}}, r"objective \(distil\): teacher \(load\): missing source"),
        ({"teacher": {"load": "folder"}}, "not a mapping with a 'kind'"),
        ({"teacher": PRESET, "temperature": 0.0}, r"temperature must be > 0 \(got 0.0\)"),
        ({"teacher": PRESET, "weight": -1.0}, r"weight must be >= 0 \(got -1.0\)"),
        ({"teacher": PRESET, "match": -1.0}, r"match must be >= 0 \(got -1.0\)"),
        ({"teacher": PRESET, "match": 1.0, "layers": -1}, "layers is -1"),
        ({"teacher": PRESET, "layers": 2}, "layers is 2, match is 0.0; allowed: layers from 0, with a match above 0"),
    ],
)
def test_wrong_options_are_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        Distil(**options)


# shortcut


@pytest.mark.parametrize(
    ("options", "step"), [({}, 1), ({"fraction": 0.9, "weight": 0.3, "temperature": 2.0}, 2), ({"fraction": 0.1}, 0)]
)
@pytest.mark.parametrize("name", ["huginn-tiny", "stars-addition-tiny"])
def test_a_shallow_step_learns_from_the_last(name, options, step):
    model, data = noisy(name, vocab_size=96).double(), batch()
    loss, metrics = Shortcut(**options)(model, rollout(model, data, Plan(4, 4)))
    logits = logits_of(model, data, 4)
    deep, shallow = told(logits[-1], data), told(logits[step], data)
    kl = sum(told_kl(d, s, options.get("temperature", 1.0)) for d, s in zip(deep, shallow, strict=True)) / len(deep)
    assert metrics["kl"].item() == pytest.approx(kl, abs=1e-10)
    assert loss.item() == pytest.approx(told_loss(deep, data) + options.get("weight", 1.0) * kl, abs=1e-10)


@pytest.mark.parametrize("name", ["huginn-tiny", "stars-addition-tiny"])
def test_the_deep_side_gets_no_gradient_from_the_shallow_one(name):
    model, data = noisy(name, vocab_size=96), batch()
    path = rollout(model, data, Plan(4, 4))
    leaves = [s.detach().requires_grad_() for s in path.states]
    path = replace(path, states=leaves)

    def gradients(weight: float) -> list[torch.Tensor | None]:
        return list(torch.autograd.grad(Shortcut(weight=weight)(model, path)[0], leaves, allow_unused=True))

    without, with_kl = gradients(0.0), gradients(1.0)
    assert gap(without[3], with_kl[3]) < 1e-7  # the last state: cross-entropy alone
    assert with_kl[1].abs().max() > 1e-4 and (without[1] is None or without[1].abs().max() == 0)
    assert with_kl[0] is None and with_kl[2] is None


def test_a_walk_of_one_step_has_no_shortcut():
    model, data = noisy("huginn-tiny"), batch()
    path = rollout(model, data, Plan(1, 1))
    loss, metrics = Shortcut()(model, path)
    assert metrics["kl"].item() == 0 and loss.item() == pytest.approx(metrics["loss_last"].item())
    a = torch.autograd.grad(loss, model.lm_head.weight, retain_graph=True)[0]
    b = torch.autograd.grad(Shortcut(weight=0.0)(model, path)[0], model.lm_head.weight)[0]
    assert gap(a, b) < 1e-6


@given(st.integers(2, 40), st.one_of(st.none(), st.floats(0.01, 0.99)), st.integers(0, 10**6))
@settings(max_examples=50)
def test_the_shallow_step_is_before_the_last_and_a_function_of_the_update(steps, fraction, update):
    objective = Shortcut(fraction=fraction, seed=3)
    found = objective.shallow(steps, update)
    assert 0 <= found < steps - 1
    assert found == objective.shallow(steps, update)


def test_drawn_shallow_steps_cover_all():
    drawn = [Shortcut(fraction=None).shallow(5, update) for update in range(200)]
    assert {t: drawn.count(t) > 25 for t in range(4)} == dict.fromkeys(range(4), True)
    assert drawn != [Shortcut(fraction=None, seed=1).shallow(5, update) for update in range(200)]


@pytest.mark.parametrize("options", [{"fraction": 0.0}, {"fraction": 1.0}, {"weight": -1.0}, {"temperature": 0.0}])
def test_wrong_shortcuts_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Shortcut(**options)


def test_divergence_has_the_same_gradient_size_at_every_temperature():
    """As the temperature grows, τ² KL tends to the squared distance of centred logits over twice their number."""
    a, b = torch.randn(2, 4, 9, dtype=torch.float64)
    a, b = a - a.mean(-1, keepdim=True), b - b.mean(-1, keepdim=True)
    assert gap(divergence(a, b, 1e4), (a - b).pow(2).sum(-1) / 18) < 1e-3
