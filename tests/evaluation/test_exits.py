"""Early exits: depths per token by hand, what rules give, and how long decoding takes under them."""

from __future__ import annotations

import math
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import loopwright as lw
from loopwright.data.batch import Batch
from loopwright.evaluation import throughput as module
from loopwright.evaluation.exits import (
    ExitEvaluation,
    ExitReport,
    early_exits,
    exit_depths,
    exit_specs,
    exit_words,
    of_rows,
    read_steps,
)
from loopwright.evaluation.throughput import clock_of, exit_times, prompts_of
from loopwright.generation.exit_rules import Entropy, Never, Stable, build_exit, exit_family, write_exit
from loopwright.generation.request import Request, RequestOptions
from loopwright.generation.scheduler import Scheduler
from tests.cases import noisy
from tests.generation.mix import RULES, make
from tests.leaks import leaking

LEARNED = [{"kind": "gate"}, {"kind": "lookahead", "rule": "gate"}]


def served(model: lw.LoopedForCausalLM, prompt: list[int], spec: Any, new: int) -> Request:
    """Returns a request that the engine answered greedily with an exit rule."""
    request = Request(RequestOptions(tuple(prompt), 4, new, exit=build_exit(spec, model)))
    scheduler = Scheduler(model, rows=1, tokens=60)
    scheduler.add(request)
    with torch.no_grad():
        while scheduler.busy:
            scheduler.tick()
    return request


@pytest.mark.long
def test_depths_of_one_pass_are_those_of_the_engine() -> None:
    model, prompt, found = make("huginn-tiny", halting={"kind": "exit", "threshold": 0.6}), [5, 6, 7], set()
    for spec in [*RULES, *LEARNED]:
        request = served(model, prompt, spec, 5)
        ids = torch.tensor([[*prompt, *request.tokens]])
        labels = ids.clone()
        labels[:, : len(prompt)] = -100
        rule = build_exit(spec, model)
        table = read_steps(model, [([0], Batch(ids, labels))], {"it": rule}, 4)
        depths = exit_depths(model, rule, table.measured["it"])
        assert depths.tolist() == request.depths, spec
        assert bool(table.right[depths - 1, torch.arange(5)].all())  # greedy: what was drawn is the likeliest token there
        found |= set(request.depths)
    assert len(found) > 2  # tokens did leave at different depths


any_model = cache(partial(make, "ouro-1.4b-tiny"))
NUMBERS = st.sampled_from([0.0, 0.5, 1.0, 2.0, math.nan, math.inf])


@given(st.integers(1, 9).flatmap(lambda steps: st.lists(st.lists(NUMBERS, min_size=steps, max_size=steps), min_size=1, max_size=9)))
def test_a_token_leaves_at_the_first_step_that_reaches_the_limit(tokens: list[list[float]]) -> None:
    """Also after the last one, where it reached none: NaN never does."""
    model, measured = any_model(), torch.tensor(tokens).T
    for rule in (Entropy(1.0), Stable(2), Never()):
        before = measured.clone()
        left = rule.reached(model, measured)
        left[-1] = True
        assert exit_depths(model, rule, measured).tolist() == (left.int().argmax(0) + 1).tolist()
        assert torch.equal(measured.nan_to_num(-1), before.nan_to_num(-1)), "what was measured stays"


@pytest.mark.parametrize(
    "halting", [{"kind": "act", "bias": -1.5}, {"kind": "halter", "width": 8, "bias": -1.5}], ids=lambda h: h["kind"]
)
@pytest.mark.parametrize("spec", [{"kind": "act"}, {"kind": "act", "eps": 0.4}], ids=["own", "early"])
@torch.no_grad()
def test_act_is_read_as_it_was_trained_in_the_engine_and_in_one_pass(halting: dict[str, Any], spec: dict[str, Any]) -> None:
    """Each token = a pass of as many steps as it took, its states mixed: `select="expected"`."""
    model, prompt = make("ouro-1.4b-tiny", halting=halting), [5, 6, 7]
    last = model.halting if halting["kind"] == "act" else model.halting.last
    states = model(torch.arange(40)[None], depth=4, output_steps=True).states
    logits = torch.logit(model.halting.values(states))
    last.bias.sub_(logits.mean()).div_(logits.std()).sub_(0.7)  # so that tokens leave at different steps
    last.weight.div_(logits.std())
    request = served(model, prompt, spec, 6)
    text = [*prompt, *request.tokens]
    for place, depth in enumerate(request.depths, start=len(prompt)):
        out = model(torch.tensor([text[:place]]), depth=4, output_steps=True, select="expected")
        limit = 1 - spec.get("eps", model.halting.eps)
        sums = model.halting.values([s[:, -1:] for s in out.states])[0, 0].cumsum(-1)
        assert depth == next((t + 1 for t in range(3) if sums[t] >= limit), 4)
        mixed = model(torch.tensor([text[:place]]), depth=depth, select="expected").logits[0, -1]
        assert text[place] == int(mixed.argmax())
    assert len(set(request.depths)) > 1
    ids = torch.tensor([text])
    rule = build_exit(spec, model)
    table = read_steps(model, [([0], Batch(ids, ids.clone()))], {"act": rule}, 4)
    losses, right = table.read("act")
    for depth in (1, 2, 3, 4):
        logits = model(ids, depth=depth, select="expected").logits[0, :-1]
        torch.testing.assert_close(losses[depth - 1], torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none"))
    left = exit_depths(model, rule, table.measured["act"])[len(prompt) - 1 :]
    assert left.tolist() == request.depths and bool(right[:, len(prompt) - 1 :].gather(0, left[None] - 1).all())


def test_a_report_of_act_is_that_of_mixed_states_and_other_rules_read_the_last() -> None:
    model = make("ouro-1.4b-tiny", halting={"kind": "act", "bias": -0.7})
    report, batch = report_of(model, [{"kind": "act", "eps": 0.0}, {"kind": "never"}]), batch_of(model)
    with torch.no_grad():
        out = model(batch.input_ids, attention_mask=batch.attention_mask, depth=4, select="expected")
    targets = batch.labels[:, 1:]
    each = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), targets.flatten(), reduction="none")
    assert report.points[1].loss == report.fixed[3].loss != report.points[0].loss
    assert report.points[0].loss == pytest.approx(float(each[targets.flatten() != -100].mean()), rel=1e-5)


def batch_of(model: lw.LoopedForCausalLM, lengths: tuple[int, ...] = (7, 5, 2)) -> Batch:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(model.config.vocab_size, (len(lengths), max(lengths)), generator=generator)
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return Batch(ids, ids.where(mask.bool(), -100), attention_mask=mask)


SPECS: list[Any] = [{"kind": "never"}, {"kind": "stable", "count": 1}, {"kind": "change", "threshold": 1.0}]


def report_of(model: lw.LoopedForCausalLM, specs: list[Any] = SPECS, **options: Any) -> ExitReport:
    batch = batch_of(model)
    halves = [([0, 1], Batch(batch.input_ids[:2], batch.labels[:2], attention_mask=batch.attention_mask[:2]))]
    halves.append(([2], Batch(batch.input_ids[2:], batch.labels[2:], attention_mask=batch.attention_mask[2:])))
    return early_exits(model, halves, specs, name="made", depth=4, units=torch.arange(3), **options)


def test_losses_are_those_of_separate_passes() -> None:
    model = make("huginn-tiny")
    report, batch = report_of(model, exact=True), batch_of(model)
    for depth in (1, 2, 3, 4):
        with torch.no_grad():
            logits = model(batch.input_ids, attention_mask=batch.attention_mask, depth=depth).logits[:, :-1].log_softmax(-1)
        targets = batch.labels[:, 1:]
        each = -logits.gather(-1, targets.clamp(min=0)[..., None])[..., 0][targets != -100]
        assert report.fixed[depth - 1].loss == pytest.approx(float(each.mean()), rel=1e-5)
    never, first, some = report.points
    assert never.mean_steps == 4 and never.loss == report.fixed[3].loss and never.excess == 0
    assert first.mean_steps == 1 and first.loss == report.fixed[0].loss == first.random_loss
    assert 1 < some.mean_steps < 4 and sum(some.shares) == pytest.approx(1)
    assert some.mean_steps == pytest.approx(sum(d * share for d, share in zip(report.depth, some.shares, strict=True)))
    mixed = sum(share * point.loss for share, point in zip(some.shares, report.fixed, strict=True))
    assert some.random_loss == pytest.approx(mixed, rel=1e-4)


def test_the_oracle_is_never_worse() -> None:
    model = make("ouro-1.4b-tiny")
    report = report_of(model, [{"kind": "entropy", "threshold": limit} for limit in (4.4, 4.2, 4.0)])
    best = report.oracle[0]
    assert all(best.loss <= point.loss for point in (*report.fixed, *report.points))
    steps = [point.mean_steps for point in report.oracle]
    assert steps == sorted(steps, reverse=True) and steps[-1] < steps[0]  # the dearer a step, the fewer are taken


def test_exact_match_is_of_whole_rows() -> None:
    model = make("ouro-1.4b-tiny")
    batch = batch_of(model)
    with torch.no_grad():
        answers = model(batch.input_ids, attention_mask=batch.attention_mask, depth=4).logits.argmax(-1)
    labels = batch.labels.clone()
    labels[:, 1:] = answers[:, :-1].where(batch.labels[:, 1:] != -100, -100)  # what it says at depth 4
    labels[1, 1] = (labels[1, 1] + 1) % 90  # one token of the second row is not
    report = early_exits(
        model, [([0, 1, 2], Batch(batch.input_ids, labels, attention_mask=batch.attention_mask))], SPECS,
        name="made", depth=4, units=torch.arange(3), exact=True,
    )  # fmt: skip
    assert report.fixed[3].exact == pytest.approx(2 / 3, abs=1e-5) and report.points[0].exact == report.fixed[3].exact
    assert report.points[0].random_exact == report.fixed[3].exact  # all tokens take the same steps
    assert 0 <= report.points[2].random_exact <= 1


def test_the_file_holds_the_report(tmp_path: Path) -> None:
    report = report_of(make("huginn-tiny"), exact=True, source="somewhere")
    assert ExitReport.load(report.save(tmp_path / "exits.json")) == report
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="not a report of early exits"):
        ExitReport.load(tmp_path / "other.json")
    cheapest = report.cheapest(math.inf)
    assert cheapest["fixed"].rule == "depth:1" and cheapest["stable"].rule == "stable:1"
    assert {point.family for point in report.points} == {"never", "stable", "change"}


def test_a_model_that_sees_the_future_has_no_exits_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, rule = torch.arange(12).view(2, 6), {"kind": "change", "threshold": 0.1}
    leaks, batches = leaking("state", monkeypatch), [([0, 1], Batch(ids, ids.clone()))]
    with pytest.raises(ValueError, match="not causal, so its loss is not a likelihood"):
        early_exits(leaks, batches, [rule], name="it", depth=2, units=torch.arange(2))


def test_families_share_a_measurement() -> None:
    assert exit_family({"kind": "change", "threshold": 0.1}) == "change"
    spec = {"kind": "lookahead", "rule": {"kind": "gate", "threshold": 0.5}}
    assert (exit_family(spec), write_exit(spec)) == ("lookahead:gate", "lookahead:gate:0.5")


@pytest.fixture(scope="module")
def rows() -> lw.TokenRows:
    ids = torch.randint(0, 90, (6, 9), generator=torch.Generator().manual_seed(0))
    return lw.TokenRows(ids, ids)


def test_the_numbers_are_those_of_the_report(rows: lw.TokenRows) -> None:
    model = noisy("ouro-1.4b-tiny").eval()
    found = lw.evaluate(model, data=rows, exit=["entropy:3", "all"], depths=3, batch=4)
    assert isinstance(found, ExitEvaluation)
    (name,) = found.reports
    part = of_rows(rows, 6, exact=False)
    specs = exit_specs(exit_words(["entropy:3", "all"]), model)
    wanted = early_exits(
        model, part.pairs(), specs, name=name, depth=3, units=part.units, exact=found[name].fixed[0].exact is not None
    )
    plain = found.to_dict()[name]
    assert [row["rule"] for row in plain] == [p.rule for p in (*wanted.fixed, *wanted.points, *wanted.oracle)]
    assert [row["loss"] for row in plain] == pytest.approx([p.loss for p in (*wanted.fixed, *wanted.points, *wanted.oracle)])
    assert {"entropy", "gate", "stable"} <= {row["rule"].split(":")[0] for row in plain}
    assert "depth:3" in found._repr_html_()


def test_what_cannot_be_measured_is_refused(rows: lw.TokenRows) -> None:
    model = noisy("huginn-tiny").eval()
    with pytest.raises(ValueError, match=r"depths: \[1, 2\] with exit; give one depth"):
        lw.evaluate(model, data=rows, exit="entropy", depths=[1, 2])
    with pytest.raises(ValueError, match="did you mean 'gate'"):
        lw.evaluate(model, data=rows, exit="gat")
    with pytest.raises(KeyError, match="'x' was not measured"):
        lw.evaluate(model, data=rows, exit="entropy:3", depths=2)["x"]


SMALL = {"hidden_size": 16, "intermediate_size": 16, "prelude_layers": 1, "core_layers": 1, "coda_layers": 1}
CHANGE = {"kind": "change", "threshold": 1.2}


@torch.no_grad()
def test_what_is_timed_is_the_engines_decoding() -> None:
    model, prompts = make("huginn-tiny", **SMALL), [(5, 6), (7, 8), (9, 4)]
    times = exit_times(model, prompts, 4, [CHANGE], 3, batches=(3,), rounds=1)
    assert [(one.rule, one.batch) for one in times] == [(rule, 3) for rule in ("depth:1", "depth:2", "change:1.2")]
    scheduler = Scheduler(model, rows=3, tokens=40, depth=3, readings=3)
    requests = [Request(RequestOptions(prompt, 3, 4, exit=build_exit(CHANGE, model))) for prompt in prompts]
    for request in requests:
        scheduler.add(request)
    while scheduler.busy:
        scheduler.tick()
    expected = sum(sum(request.depths) for request in requests) / 12
    assert 1 < expected < 3 and times[-1].mean_steps == expected
    assert times[0].mean_steps == 1 and all(one.ratio > 0 for one in times)


def test_each_rule_is_divided_by_the_full_depth_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1, 1000))  # every run takes longer than the last
    runs: list[tuple[str, float]] = []

    def decode(model: Any, prompts: Any, rows: int, new: int, options: Any, deepest: int) -> tuple[float, float]:
        plain = "exit" not in options
        runs.append((f"depth:{options['depth']}" if plain else "rule", float(next(clock))))
        return runs[-1][1], 1.0

    monkeypatch.setattr(module, "_decode", decode)
    model = make("huginn-tiny", **SMALL)
    times = exit_times(model, [(1,)], 4, [CHANGE], 5, batches=(1,), rounds=2)
    order = ["depth:5", "depth:1", "depth:2", "depth:3", "depth:4", "depth:5", "rule"]
    assert [name for name, _ in runs] == order * 3
    # rounds begin at 8 and 15: the first warms up; the fifth run is divided by the second full depth
    fifth = sorted([14 / 13, 21 / 20])
    rule = next(one for one in times if one.rule == "change:1.2")
    assert rule.ratio == pytest.approx(sum(fifth) / 2) and fifth[0] < rule.low < rule.ratio < rule.high < fifth[1]


def test_prompts_are_questions_or_the_beginnings_of_texts() -> None:
    ids = torch.arange(60).view(2, 30)
    labels = ids.clone()
    assert prompts_of(Batch(ids, labels), answers=False) == ([tuple(range(15)), tuple(range(30, 45))], 15)
    labels[0, :3], labels[1, :4] = -100, -100
    labels[0, 5:], labels[1, 8:] = -100, -100
    assert prompts_of(Batch(ids, labels), answers=True) == ([(0, 1, 2), (30, 31, 32, 33)], 2)
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0  # the shortest row decides
    prompts, new = prompts_of(Batch(ids, labels, mask), answers=False)
    assert (prompts[1], new) == ((30, 31, 32, 33), 4)


def test_the_clock_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("huginn-tiny", **SMALL)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert clock_of(model) == "wall"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert clock_of(model) == "processor"
