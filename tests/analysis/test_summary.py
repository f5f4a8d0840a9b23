"""Summaries: means and spreads are those of the traces, labels those of the classifier, and everything is plain data."""

import json
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from loopwright.analysis.summary import Moments, Settling, StepAnswers, as_list, grid, one_step, summarise
from loopwright.analysis.trace.record import trace_prompts
from loopwright.analysis.trace.trace import Trace, trace
from loopwright.metrics.limits import classify_limit, limit_counts
from tests.analysis.summaries import ROWS, dense, looped
from tests.cases import noisy


def test_moments_are_those_of_the_numbers():
    values = torch.randn(7, 4, dtype=torch.float64)
    moments = Moments()
    for row in values:
        moments.add(row)
    found = moments.plain()
    assert torch.allclose(torch.tensor(found["mean"]).double(), values.mean(0), atol=1e-5)
    assert torch.allclose(torch.tensor(found["std"]).double(), values.std(0, correction=0), atol=1e-5)


@pytest.mark.long
def test_a_summary_is_the_mean_over_examples(tmp_path):
    model = noisy("huginn-tiny", std=0.3)
    found = summarise(trace_prompts(model, ROWS, tmp_path, depth=8, batch=2), answer_depth=4)
    alone = [trace(model, torch.tensor([row]), 8) for row in ROWS]
    for name in ("colsum", "norm", "fixed_cosine"):
        each = torch.stack([one.values[name][0] if one.values[name].dim() == 2 else one.values[name][0].mean(-1) for one in alone])
        wanted = each.mean(0)
        got = torch.tensor([float("nan") if v is None else v for v in found["by_place"][name]["mean"]])
        assert torch.equal(got.isnan(), wanted.isnan())
        assert (got - wanted).nan_to_num().abs().max() < 1e-4
    rate = torch.stack([(one.values["sink_first"][0] > 0.3).double().mean(-1) for one in alone]).mean(0)
    assert torch.allclose(torch.tensor(found["by_place"]["sink_rate"]["mean"]).double(), rate, atol=1e-5)
    labels = [classify_limit(one.core("token_cosine")[0].double()[:-1].permute(1, 2, 0)).label for one in alone]
    counts = sum((limit_counts(label[:, None]) for label in labels[1:]), start=limit_counts(labels[0][:, None]))
    assert found["limits"]["tokens"] == as_list(counts.token_rates())
    assert found["tokens"] == 14 and found["examples"] == 3


def test_a_number_that_an_older_trace_lacks_has_no_mean():
    model = noisy("huginn-tiny")
    new, old = (trace(model, torch.tensor([row]), 6) for row in ROWS[:2])
    old = replace(old, values={name: x for name, x in old.values.items() if name != "far_attention"})
    assert "far_attention" in summarise([new])["by_place"]
    for traces in ([new, old], [old, new]):
        found = summarise(traces)
        assert "far_attention" not in found["by_place"] and "far_cosine" in found["by_place"] and found["examples"] == 2


def test_a_summary_is_plain_and_finite():
    for one in (looped(), dense()):
        json.dumps(one, allow_nan=False)
    assert set(looped()) >= {
        "places",
        "by_place",
        "by_step",
        "limits",
        "convergence",
        "answers",
        "pairs",
        "path",
        "spectrum",
        "neurons",
    }
    assert not set(dense()) & {"limits", "convergence", "answers", "path", "spectrum"}


def test_rows_of_the_core_and_of_one_step():
    metrics = looped()
    flat = metrics["by_place"]["colsum"]["mean"]
    assert grid(metrics, "colsum")[2] == flat[1 + 8 : 1 + 12]
    assert one_step(metrics, "colsum", 2) == [flat[0], *flat[9:13], flat[-1]]


def test_answers_count_flips_and_what_stays():
    answers = StepAnswers(2)
    for tokens in ([1, 2, 2, 3], [5, 4, 4, 4]):
        one = trace(noisy("huginn-tiny"), torch.tensor([[1, 2]]), 4, collect=("lens",))
        answers.add(Trace(one.places, one.input_ids, one.valid, {"answer_token": torch.tensor([tokens])}))
    found = answers.plain()["answers"]
    kept = {"tokens": [[1, 2, 2, 3], [5, 4, 4, 4]]}
    assert found == {
        "flips": [None, 1.0, 0.0, 0.5],
        "final": [0.0, 0.5, 0.5, 1.0],
        "settled": [2, 4],
        "depth": 2,
        "kept": 0.5,
        **kept,
    }


@pytest.mark.long
def test_the_orbit_kept_is_the_largest_with_the_stages_of_its_prompt():
    steps, settle, traced = torch.arange(40), Settling(), trace(noisy("huginn-tiny"), torch.tensor([[1, 2, 3]]), 41)
    for number, size in enumerate((0.1, 0.3, 0.2)):
        one = deepcopy(traced)
        one.values["token_cosine"].fill_(1.0)
        one.core("token_cosine")[0, :40, 1, 2] = (0.6 + size * torch.cos(steps * 2 * torch.pi / 8)).half()
        settle.add(one, {"colsum": torch.full((one.places.count,), float(number)), "norm": torch.ones(1)})
    orbit = settle.plain()["limits"]["orbit"]
    assert (orbit["example"], orbit["token"], orbit["layer"]) == (2, 3, 1)
    assert set(orbit["by_place"]) == {"colsum"} and set(orbit["by_place"]["colsum"]["mean"]) == {1.0}
    assert abs(max(orbit["series"]) - 0.9) < 1e-2 and len(orbit["series"]) == 40


@pytest.mark.long
def test_orbits_have_their_amplitude_and_frequency_and_every_layer_its_rates():
    steps, traced = torch.arange(40), trace(noisy("huginn-tiny"), torch.tensor([[1, 2, 3, 4]]), 41)
    settle, last = Settling(), []
    for size, period in ((0.1, 8), (0.3, 4), (0.2, 8)):
        one = deepcopy(traced)
        one.values["token_cosine"].fill_(1.0)
        wave = torch.cos(steps * 2 * torch.pi / period)
        if period == 8:  # larger ones at the first layer, of two tokens in two examples
            one.core("token_cosine")[0, :40, 0, :2] = (0.5 + 0.5 * wave[:, None]).half()
        one.core("token_cosine")[0, :40, 1, 2] = (0.6 + size * wave).half()
        last.append(classify_limit(one.core("token_cosine")[0, :40, 1, 2].double()))
        settle.add(one, {})
    found = settle.plain()["limits"]
    amplitudes, frequencies = (sorted(getattr(each, name).item() for each in last) for name in ("amplitude", "frequency"))
    wanted = {
        "tokens": 3, "median_amplitude": amplitudes[1], "largest_amplitude": amplitudes[2], "median_frequency": frequencies[1],
    }  # fmt: skip
    assert found["orbits"] == pytest.approx(wanted, rel=1e-5)
    assert amplitudes == pytest.approx([0.1, 0.2, 0.3], rel=0.05) and frequencies == [1 / 8, 1 / 8, 1 / 4]
    first, second = found["by_layer"]["tokens"]
    assert first == pytest.approx([2 / 3, 1 / 3, 0, 0], abs=1e-5) and second == found["tokens"] == [0.75, 0.25, 0.0, 0.0]
    first, second = found["by_layer"]["examples"]
    assert first == pytest.approx([1, 2 / 3, 0, 0], abs=1e-5) and second == found["examples"] == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.long
def test_the_rates_of_every_layer_are_those_of_its_labels_and_end_with_the_last_layers(tmp_path):
    model = noisy("huginn-tiny", std=0.3, core_layers=3)
    traces = trace_prompts(model, ROWS, tmp_path, depth=8, batch=2)
    found = summarise(traces)["limits"]
    labels = [classify_limit(one.core("token_cosine")[0].double()[:-1].permute(1, 2, 0)).label for one in traces]
    for layer, (tokens, examples) in enumerate(zip(found["by_layer"]["tokens"], found["by_layer"]["examples"], strict=True)):
        each = [label[layer] for label in labels]
        assert tokens == pytest.approx([(torch.cat(each) == kind).double().mean().item() for kind in range(4)], abs=1e-5)
        assert examples == pytest.approx([sum(bool((one == kind).any()) for one in each) / 3 for kind in range(4)], abs=1e-5)
    assert found["by_layer"]["tokens"][-1] == found["tokens"] and found["by_layer"]["examples"][-1] == found["examples"]
    assert len(found["by_layer"]["tokens"]) == 3 and ("orbits" in found) == (found["tokens"][1] > 0)


def test_what_is_not_finite_becomes_none():
    assert as_list(torch.tensor([[1.23456789, float("nan")], [float("inf"), 0.0]])) == [[1.23457, None], [None, 0.0]]


def test_traces_of_other_layouts_and_none_are_refused():
    model = noisy("huginn-tiny")
    two = [trace(model, torch.tensor([[1, 2]]), depth) for depth in (2, 3)]
    with pytest.raises(ValueError, match="allowed: one layout"):
        summarise(two)
    with pytest.raises(ValueError, match="no trace"):
        summarise([])
