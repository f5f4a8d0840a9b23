"""Rows of mixed depth: exits with backfill = full recomputation at the same exits; drafts = plain decoding; never leaving = plain.

A row whose earlier tokens are less deep gives, once they are brought along, the logits of a full pass.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from loopwright.generation.exit_rules import ExitRule, build_exit
from loopwright.generation.graphs import PassGraphs
from loopwright.generation.mixed_depth import StateHistory, read_histories, step_histories
from loopwright.generation.passes import Passes
from loopwright.generation.request import Request, RequestOptions
from loopwright.generation.sampling import Sampling
from loopwright.generation.scheduler import Scheduler
from loopwright.model.keys.pool import KeyPool, Row
from loopwright.model.keys.rows import PooledRows
from tests.cases import gap
from tests.generation.mix import RULES, alone, answer, check, constrained, make, random_options, recomputed, serve, with_mixed_depth

SEED = 2  # with which constrained requests have drafts, exits and neither
SMALL = {"hidden_size": 16, "intermediate_size": 16, "prelude_layers": 1, "core_layers": 1, "coda_layers": 1}
CODA = {"kind": "exit", "threshold": 0.6}


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        pytest.param("huginn-tiny", RULES[::2], id="huginn-tiny"),
        pytest.param("huginn-tiny", RULES, id="huginn-tiny-every-rule", marks=pytest.mark.long),
        pytest.param("ouroboros-qwen2.5-3b-tiny", RULES, id="ouroboros-qwen2.5-3b-tiny", marks=pytest.mark.slow),
    ],
)
def test_backfill_is_full_recomputation(name: str, rules: list[Any]) -> None:
    model, draw = make(name), random.Random(name)
    requested = []
    for spec in rules:
        prompt = tuple(draw.randrange(96) for _ in range(draw.randint(1, 5)))
        requested.append(RequestOptions(prompt, 4, 5, Sampling(temperature=1.0), seed=3, exit=build_exit(spec, model)))
    scheduler = Scheduler(model, rows=4, tokens=200, chunk=3)
    requests, _ = serve(scheduler, [*requested, random_options(model, draw)], draw)
    found = set()
    for options, request in zip(requested, requests, strict=False):
        assert (request.tokens, request.depths) == recomputed(model, options), options.exit
        found |= set(request.depths)
    assert len(found) > 2  # tokens did leave at different depths
    assert not scheduler.running and len(scheduler.free_slots) == 4


@torch.no_grad()
def test_the_gates_rule_is_the_hubs() -> None:
    model = make("huginn-tiny", halting=CODA)
    ids = torch.tensor([[5, 6, 7]])
    theirs = model.generate(ids, depth=4, max_new_tokens=8, do_sample=False, eos_token_id=None, select="hub")[0, 3:].tolist()
    options = RequestOptions((5, 6, 7), 4, 8, exit=build_exit("gate", model))
    scheduler = Scheduler(model, rows=1, tokens=50)
    (request,), _ = serve(scheduler, [options], random.Random(0))
    assert request.tokens == theirs
    assert len(set(request.depths)) > 1, "choose weights with which some tokens leave early"
    assert scheduler.ran.row_steps == sum(request.depths)  # steps that nobody needs are not run
    # the last prompt token, and each token of the answer but the last, misses at most the steps it did not take
    assert scheduler.ran.token_steps <= 4 * 8


@pytest.mark.parametrize("name", ["huginn-tiny", "ouro-1.4b-tiny"])
@pytest.mark.parametrize("keys", ["backfill", "copy"])
def test_never_leaving_is_plain_bitwise(name: str, keys: str) -> None:
    model = make(name).float()
    plain = RequestOptions((5, 6, 7, 8), 4, 6, logprobs=True)
    outcomes = []
    for options in (plain, replace(plain, exit=build_exit("never", model), exit_keys=keys)):
        (request,), _ = serve(
            Scheduler(model, rows=1, tokens=50, chunk=3), [options], random.Random(0)
        )  # both end the prefill alike
        outcomes.append(request.result(0))
    assert outcomes[0] == outcomes[1]


@torch.no_grad()
def test_copied_keys_are_those_of_the_exit() -> None:
    model = make("huginn-tiny", adapters=[{"kind": "controller", "rank": 4, "style": 8}], max_steps=6, beyond_max_steps="repeat")
    options = RequestOptions((5, 6, 7), 4, 6, exit=build_exit({"kind": "stable", "count": 1}, model), exit_keys="copy")
    scheduler, request = Scheduler(model, rows=1, tokens=60), Request(options)
    scheduler.add(request)
    while len(request.tokens) < 4:
        scheduler.tick()
    row, pool = scheduler.running[0].row, scheduler.pool
    for index in (2, 3, 4):  # all left after one step
        for table in (pool.keys["core"], pool.values["core"], *(x[None] for (stack, _), x in pool.sums.items() if stack == "core")):
            kept = [table[:, row.cell("core", t) + index] for t in range(4)]
            assert all(torch.equal(kept[0], other) for other in kept[1:])
        kept = [pool.keys["coda"][:, row.cell("coda", d) + index] for d in range(4)]
        assert all(torch.equal(kept[0], other) for other in kept[1:])
    assert request.depths == [1] * 4 and scheduler.ran.token_steps == scheduler.ran.row_steps  # nothing is run again


@pytest.mark.parametrize(
    ("name", "tokens", "shallow"),
    [
        ("huginn-tiny", 3, 2),
        pytest.param("ouroboros-qwen2.5-3b-tiny", 4, 1, marks=pytest.mark.slow),
        pytest.param("huginn-tiny", 5, "auto", marks=pytest.mark.long),
    ],
)
def test_drafts_change_no_token(name: str, tokens: int, shallow: int | str) -> None:
    model, draw = make(name), random.Random(name)
    requested = []
    for _ in range(3):
        options = random_options(model, draw, longest=6)
        requested.append(replace(options, depth=4, draft_depth=shallow, draft_tokens=tokens, max_new_tokens=6))
    scheduler = Scheduler(model, rows=3, tokens=160, readings=3, chunk=4)
    requests, _ = serve(scheduler, [*requested, random_options(model, draw)], draw)
    for options, request in zip(requested, requests, strict=False):
        assert request.tokens == alone(model, options), options
    assert scheduler.ran.drafted > 0 and not scheduler.running


@pytest.mark.long
def test_constrained_requests_are_what_they_are_alone() -> None:
    pytest.importorskip("llguidance")
    model, draw = make("huginn-tiny", **SMALL), random.Random(SEED)
    requested = [replace(random_options(model, draw, longest=4), max_new_tokens=7) for _ in range(8)]
    requested = constrained(
        [with_mixed_depth(model, options, draw) if i % 2 else options for i, options in enumerate(requested)], draw
    )
    assert {options.draft_depth is not None for options in requested if options.constraint} == {True, False}
    assert any(options.exit is not None for options in requested if options.constraint)
    answers = [answer(model, options) for options in requested]
    for lag in (0, 1):  # as on a CPU, and as on a GPU
        requests, cancelled = serve(Scheduler(model, rows=4, tokens=160, chunk=3, lag=lag), requested, draw, cancels=0.03)
        assert check(model, requests, cancelled, answers) == 0


# with limits at which tokens of this model leave at different steps, and each rule remembers something
REMEMBERING: list[Any] = [
    {"kind": "divergence", "threshold": 0.1},
    {"kind": "lookahead", "rule": {"kind": "change", "threshold": 0.8}},
    pytest.param({"kind": "stable", "count": 2}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("rule", REMEMBERING, ids=str)
def test_equal_rules_of_several_rows_are_asked_together(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, draw = make("huginn-tiny", **SMALL), random.Random(SEED)
    plain = [RequestOptions(tuple(draw.randrange(96) for _ in range(3)), 5, 5) for _ in range(4)]
    requested = [replace(options, exit=build_exit(rule, model)) for options in plain]  # a rule of its own for each
    sizes, leaves = [], ExitRule.leaves

    def counted(self: ExitRule, model: Any, before: Any, *rest: Any) -> Any:
        sizes.append(len(before))
        return leaves(self, model, before, *rest)

    monkeypatch.setattr(ExitRule, "leaves", counted)
    requests, _ = serve(Scheduler(model, rows=4, tokens=40, readings=5), requested, draw)
    assert max(sizes) > 1
    monkeypatch.undo()
    answers = [answer(model, options) for options in requested]
    assert len({tuple(depths) for _, depths in answers}) == len(requested)  # else it would not show whose memory is whose
    assert check(model, requests, set(), answers) == 0


PENALISED = [Sampling(), Sampling(frequency_penalty=5.0), Sampling(temperature=2.0, repetition_penalty=3.0)]


@pytest.mark.parametrize("sampling", PENALISED)
def test_drafts_that_hold_save_passes(sampling: Sampling) -> None:
    model = make("ouro-1.4b-tiny")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                parameter.zero_()
        model.end_norm.weight.fill_(1.0)  # every depth says the same
    options = RequestOptions((5, 6), 4, 13, sampling, draft_depth=1, draft_tokens=4)
    scheduler = Scheduler(model, rows=1, tokens=60)
    (request,), _ = serve(scheduler, [options], random.Random(0))
    assert request.tokens == alone(model, options)
    # 13 tokens: three verifications of four tokens each, and one token alone
    assert (scheduler.ran.verified, scheduler.ran.accepted, scheduler.ran.drafted) == (4, 9, 9)
    assert scheduler.ran.row_steps == 3 * (4 * 1 + 3) + 4


def test_a_missing_backfill_would_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("huginn-tiny")
    options = RequestOptions((5, 6, 7), 4, 6, exit=build_exit({"kind": "change", "threshold": 1.2}, model))
    monkeypatch.setattr("loopwright.generation.mixed_depth._first_missing", lambda run: run.offset)
    with pytest.raises(ValueError, match="earlier tokens"):
        serve(Scheduler(model, rows=1, tokens=50), [options], random.Random(0))


@dataclass(eq=False)
class Token:
    """What the functions read of a row in flight."""

    row: Row
    history: StateHistory
    offset: int = 0
    t: int = 0
    work: int = 0


@pytest.mark.parametrize("kind", [Passes, PassGraphs])
@torch.no_grad()
def test_tokens_of_many_depths(kind: type[Passes]) -> None:
    model = make("huginn-tiny")
    ids = torch.randint(96, (1, 6), generator=torch.Generator().manual_seed(0))
    pool = KeyPool(model.config, 60, model.lm_head.weight)
    row = pool.admit(6, 4, (1, 2, 3, 4))
    assert row is not None
    run = Token(row, StateHistory(pool, row))
    passes = Passes(model, pool) if kind is Passes else PassGraphs(model, pool, 2)
    full = {depth: model(ids, depth=depth).logits[0] for depth in range(1, 5)}
    for offset, depth in enumerate((2, 1, 1, 4, 1, 3)):
        run.offset, run.t = offset, 0
        cache = PooledRows(pool, [row], [offset], 1)
        e, p = model.embed_at(model.token_vectors(ids[:, offset : offset + 1]), cache.span, cache=cache)
        run.history.begin(offset, e[0], model.start_state(e, p)[0])
        for _ in range(depth):
            step_histories(passes, [run])  # type: ignore[list-item]
        ((_, logits),) = read_histories(passes, [run], lambda run: 1)  # type: ignore[list-item]
        assert gap(logits[0], full[depth][offset]) < 1e-9
    # the fourth token brought three along, the last one the fifth: each step of each token once, those nobody needs never
    assert run.work == 4 * 4 + 1 + 3 + 2


@pytest.mark.parametrize("name", ["huginn-tiny", "ouro-1.4b-tiny"])  # with a prelude and without
def test_histories_have_places_of_their_own(name: str) -> None:
    model = make(name)
    pool = KeyPool(model.config, 60, model.lm_head.weight)
    keys = pool.storage_bytes
    rows = [row for row in (pool.admit(count, steps, (steps,)) for count, steps in ((7, 2), (5, 1), (9, 3))) if row is not None]
    histories = [StateHistory(pool, row) for row in rows]
    assert pool.storage_bytes > keys
    for number, history in enumerate(histories):
        history.inputs[:], history.after[:] = number, 10 + number
    inputs, states = pool.states
    inputs[-1], states[-1] = -1, -1  # where rows without a history write
    for number, (history, row) in enumerate(zip(histories, rows, strict=True)):
        assert history.inputs.shape == (row.capacity, model.config.hidden_size) and (history.inputs == number).all()
        assert history.after.shape == (row.steps, *history.inputs.shape) and (history.after == 10 + number).all()
        assert all(
            states[history.cell(depth)].data_ptr() == history.states(depth, 0, 1).data_ptr() for depth in range(row.steps + 1)
        )
