"""Whatever its neighbours, arrival, depth and sampling: a request answers what `model.generate` answers to it alone."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from loopwright.generation import mixed_depth
from loopwright.generation.constraints import ConstrainedVocabulary
from loopwright.generation.exit_rules import EXITS, build_exit
from loopwright.generation.graphs import PassGraphs, TickGraphs
from loopwright.generation.request import Request, RequestOptions
from loopwright.generation.sampling import Sampling
from loopwright.generation.scheduler import Scheduler
from tests.cases import noisy
from tests.generation.mix import alone, answer, check, make, random_options, serve, with_mixed_depth
from tests.generation.tiny import DENSE, letter_tokenizer

SMALL = {"hidden_size": 16, "intermediate_size": 16, "prelude_layers": 1, "core_layers": 1, "coda_layers": 1}
MODELS: list[tuple[str, dict[str, Any], int]] = [
    ("huginn-tiny", {}, 0),
    ("huginn-tiny", {}, 1),
    ("ouroboros-qwen2.5-3b-tiny", {"sliding_window": 5}, 0),
    ("ouroboros-qwen2.5-3b-tiny", DENSE, 1),
    ("asura-tiny", {}, 0),
]


@pytest.mark.parametrize(("name", "changes", "lag"), MODELS, ids=[f"{name}-{i}" for i, (name, _, _) in enumerate(MODELS)])
def test_requests_are_what_they_are_alone(name: str, changes: dict[str, Any], lag: int) -> None:
    model, draw = make(name, **changes), random.Random(f"{name}{lag}")
    scheduler = Scheduler(model, rows=3, tokens=60, chunk=4, lag=lag)
    requested = [random_options(model, draw) for _ in range(4)]
    requests, cancelled = serve(scheduler, requested, draw, cancels=0.03)
    assert check(model, requests, cancelled, [answer(model, options) for options in requested]) == 0
    assert sorted(scheduler.free_slots) == [0, 1, 2]
    assert all(len(cells.free) <= 1 for cells in scheduler.pool.cells.values())


@pytest.mark.long
def test_an_answer_of_so_many_tokens_ends_later() -> None:
    model, draw = make("huginn-tiny"), random.Random(1)
    half = frozenset(range(0, 96, 2))  # ends: an answer without a least length rarely has three tokens
    requested = [replace(random_options(model, draw), ends=half, max_new_tokens=8) for _ in range(6)]
    requested = [
        replace(options if i % 2 else with_mixed_depth(model, options, draw), min_new_tokens=draw.randint(0, 8))
        for i, options in enumerate(requested)
    ]
    answers = [answer(model, options) for options in requested]
    requests, cancelled = serve(Scheduler(model, rows=3, tokens=120, chunk=4), requested, draw)
    assert check(model, requests, cancelled, answers) == 0
    assert all(len(tokens) >= options.min_new_tokens for options, (tokens, _) in zip(requested, answers, strict=True))
    short = [answer(model, replace(options, min_new_tokens=0))[0] for options in requested]
    assert sum(len(a) < len(b) for a, (b, _) in zip(short, answers, strict=True)) >= 3


def plain(prompt: int, depth: int, new: int, **options: Any) -> RequestOptions:
    return RequestOptions(tuple(range(2, 2 + prompt)), depth, new, **options)


def test_no_step_is_run_that_nobody_asked_for() -> None:
    model = make("huginn-tiny")
    scheduler = Scheduler(model, rows=4, tokens=200)
    requested = [plain(3, depth, 5) for depth in (1, 2, 3, 6, 4, 1, 1, 5)]
    serve(scheduler, requested, random.Random(0))
    # the first token of an answer comes out of the prefill
    assert scheduler.ran.row_steps == sum(options.depth * (options.max_new_tokens - 1) for options in requested)
    assert scheduler.ran.prefill_tokens == 3 * len(requested)


@torch.no_grad()
def test_admission_by_what_fits_in_order() -> None:
    model = make("huginn-tiny")  # depth 4
    scheduler = Scheduler(model, rows=8, tokens=20)
    requests = [Request(options) for options in (plain(5, 4, 6), plain(10, 4, 6), plain(1, 1, 2))]
    for request in requests:
        scheduler.add(request)
    scheduler.tick()
    # the second does not fit beside the first; the third would, and waits in line
    assert [run.request for run in scheduler.running] == requests[:1]
    while scheduler.busy:
        scheduler.tick()
    assert [request.finish_reason for request in requests] == ["length"] * 3


def admitted(scheduler: Scheduler, requests: list[Request]) -> list[int]:
    """Returns the numbers of the requests in the order of their admission, through one row."""
    order: list[int] = []
    with torch.no_grad():
        while scheduler.busy:
            scheduler.tick()
            order += [n for n, request in enumerate(requests) if request.tokens and n not in order]
    return order


def test_priority_overtakes_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwright.generation.scheduler.OVERTAKES", 8)
    scheduler = Scheduler(make("huginn-tiny"), rows=1, tokens=20)
    requests = [Request(plain(1, 1, 1)) for _ in range(2)] + [Request(plain(1, 1, 1, priority=1))]
    for request in requests:
        scheduler.add(request)
    assert admitted(scheduler, requests) == [2, 0, 1]
    low = Request(plain(1, 1, 1))
    scheduler.add(low)
    later = [Request(plain(1, 1, 1, priority=1)) for _ in range(12)]
    for request in later:
        scheduler.add(request)
    assert admitted(scheduler, [*later, low]).index(len(later)) == 7


POISON = 7  # the token whose embedding is no number, or as large that norms overflow
WAYS: list[dict[str, Any]] = [
    {}, {"logprobs": True, "top_logprobs": 2}, {"prompt_logprobs": True}, {"step_tokens": 2}, {"draft_depth": 1, "draft_tokens": 3},
    {"draft_depth": "auto", "draft_tokens": 4}, {"sampling": Sampling(temperature=1.0, top_p=0.9)},
    {"sampling": Sampling(repetition_penalty=1.5)}, {"constraint": {"regex": "[a-z]{9}"}}, *({"exit": kind} for kind in EXITS),
    {"exit": "stable", "exit_keys": "copy"}, {"exit": "kl", "sampling": Sampling(temperature=1.0)},
    {"exit": "entropy", "constraint": {"choice": ["abc", "abd"]}, "logprobs": True},
]  # fmt: skip
QUICK: list[dict[str, Any]] = [{}, {"draft_depth": 1, "draft_tokens": 3}, {"exit": "kl"}, {"exit": "change"}]
NEEDED = {"gate": {"kind": "exit"}, "act": {"kind": "act"}}  # halting of a model that has the rule


def poisoned(value: float, rule: Any) -> Any:
    changes: dict[str, Any] = {"halting": NEEDED[rule]} if rule in NEEDED else {}
    model = make("retrofit-llama-1b-tiny", **SMALL, tie_word_embeddings=False, read_out="last", **changes)
    with torch.no_grad():
        model.embed_tokens.weight[POISON] = value
    return model


def options_of(model: Any, prompt: tuple[int, ...], way: dict[str, Any]) -> RequestOptions:
    options = {"exit": build_exit("never", model)} if "step_tokens" in way else {}
    options |= {"exit": build_exit(way["exit"], model)} if "exit" in way else {}
    if "constraint" in way:
        pytest.importorskip("llguidance")
        options["constraint"] = ConstrainedVocabulary(letter_tokenizer(), 96).constraint(way["constraint"])
    return RequestOptions(prompt, 3, 4, **{**way, **options})


@pytest.mark.parametrize(
    "value", [pytest.param(torch.nan, marks=pytest.mark.long), pytest.param(torch.inf, marks=pytest.mark.slow), 1e300]
)
@pytest.mark.parametrize("way", [pytest.param(way, marks=[] if way in QUICK else pytest.mark.long, id=str(way)) for way in WAYS])
def test_logits_that_say_nothing_fail_their_request_alone(way: dict[str, Any], value: float) -> None:
    """By every way a token is chosen, whatever the neighbours, with prompts that begin alike, and in cells that held such keys."""
    model = poisoned(value, way.get("exit"))
    good, bad = (2, 3, 4), (2, 3, POISON)
    requested = [options_of(model, prompt, way) for prompt in (good, bad, bad, good)]
    expected = answer(model, requested[0])[0]
    if requested[0].exit_keys == "copy":  # an approximation, so the engine alone can say what it gives
        ((lone,), _) = serve(Scheduler(model, rows=1, tokens=60, chunk=2), requested[:1], random.Random(0))
        expected = lone.tokens
    for lag, ticks in ((0, "row by row"), (1, "of constant shape")):
        scheduler = Scheduler(model, rows=3, tokens=60, readings=3, chunk=2, lag=lag)
        if ticks == "of constant shape":  # as they are captured on a GPU
            scheduler.graphs = TickGraphs(model, scheduler.pool, scheduler.state, scheduler.input, scheduler.token)
            scheduler.passes = PassGraphs(model, scheduler.pool, 3)
        for _ in range(2):
            requests, _ = serve(scheduler, requested, random.Random(0))
            for request in (requests[1], requests[2]):
                with pytest.raises(ValueError, match=r"^request: logits are not finite after (step \d behind )?[23] tokens"):
                    request.result(0)
                assert request.tokens == []
            assert [requests[0].result(0).tokens, requests[3].result(0).tokens] == [expected] * 2, ticks
        assert not scheduler.running and len(scheduler.free_slots) == 3


@pytest.mark.parametrize("name", ["huginn-tiny", "ouroboros-qwen2.5-3b-tiny", "ouro-1.4b-tiny"])
def test_a_norm_that_overflows_is_an_error_at_every_exit(name: str) -> None:
    """In bfloat16 a norm of 1e38 leaves zeros as logits, of which the first token is the largest."""
    model = noisy(name).to(torch.bfloat16)
    stack = "coda" if name == "huginn-tiny" else "end_norm"
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.startswith(stack) and "norm" in parameter_name:
                parameter.fill_(1e38)
    with pytest.raises(ValueError, match=r"generate: .* after 3 tokens, so no token can be chosen"):
        model.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=3, do_sample=False)
    kinds = [kind for kind in EXITS if kind not in NEEDED or (kind, model.config.halting["kind"]) == ("gate", "exit")]
    requested = [
        options_of(model, (3, 4, 5), way) for way in [{}, {"draft_depth": 1, "draft_tokens": 3}, *({"exit": k} for k in kinds)]
    ]
    requests, _ = serve(Scheduler(model, rows=4, tokens=200, readings=4), requested, random.Random(0))
    for request in requests:
        with pytest.raises(ValueError, match="request: logits are not finite after"):
            request.result(0)


@pytest.mark.parametrize("way", [{"exit": "entropy"}, {"exit": "lookahead"}, {"step_tokens": 1}, {"exit": "change"}], ids=str)
def test_a_step_that_says_nothing_is_an_error_where_a_rule_reads_it(way: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The last step would answer, but the rule cannot know whether the token should have left before."""
    model, read = make("retrofit-llama-1b-tiny", **SMALL), mixed_depth.read_histories

    def silent(passes: Any, runs: Any, keep: Any) -> Any:
        pairs = read(passes, runs, keep)
        return [(run, logits * torch.nan if (run.t, run.request.options.prompt[0]) == (1, 9) else logits) for run, logits in pairs]

    monkeypatch.setattr(mixed_depth, "read_histories", silent)
    way = {"exit": {"kind": "lookahead", "rule": "entropy"}} if way.get("exit") == "lookahead" else way
    requested = [options_of(model, prompt, way) for prompt in ((2, 3), (9, 3))]
    requests, _ = serve(Scheduler(model, rows=2, tokens=60, readings=3), requested, random.Random(0))
    assert requests[0].result(0).tokens == answer(model, requested[0])[0]
    if way.get("exit") == "change":  # reads no logits
        assert requests[1].result(0).tokens == answer(model, requested[1])[0]
    else:
        with pytest.raises(ValueError, match="request: logits are not finite after step 1 behind 2 tokens"):
            requests[1].result(0)


def test_prompt_scores_that_say_nothing_are_an_error() -> None:
    model = make("retrofit-llama-1b-tiny", **SMALL, tie_word_embeddings=False)
    with torch.no_grad():
        model.embed_tokens.weight[POISON] = 1e300  # its own logits are all the same, and its keys are zero
    plain = RequestOptions((2, POISON, 4), 2, 4)
    requested = [plain, replace(plain, prompt_logprobs=True), replace(plain, prompt=(2, 3, 4), prompt_logprobs=True)]
    requests, _ = serve(Scheduler(model, rows=3, tokens=60), requested, random.Random(0))
    assert len(requests[0].result(0).tokens) == len(requests[2].result(0).prompt_logprobs or []) + 2 == 4
    with pytest.raises(ValueError, match="request: logits are not finite after"):
        requests[1].result(0)


@pytest.mark.parametrize(
    ("name", "options"),
    [("TokenCounts", {"sampling": Sampling(presence_penalty=1.0)}), ("StateHistory", {"draft_depth": 1, "draft_tokens": 2})],
)
def test_a_request_that_cannot_be_seated_fails_alone(monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any]) -> None:
    def full(*args: Any, **named: Any) -> None:
        raise torch.OutOfMemoryError

    model = make("huginn-tiny")
    monkeypatch.setattr(f"loopwright.generation.scheduler.{name}", full)
    scheduler = Scheduler(model, rows=2, tokens=60)
    good, bad = plain(3, 2, 4), plain(3, 2, 4, **options)
    requests, _ = serve(scheduler, [good, bad, good], random.Random(0))
    with pytest.raises(torch.OutOfMemoryError):
        requests[1].result(0)
    assert requests[0].result(0).tokens == requests[2].result(0).tokens == alone(model, good)
    assert sorted(scheduler.free_slots) == [0, 1] and scheduler.pool.cells["core"].free == [(0, 240)]


def test_log_probabilities_are_the_models_own() -> None:
    model = make("huginn-tiny")
    options = plain(4, 3, 4, logprobs=True)
    (request,), _ = serve(Scheduler(model, rows=1, tokens=20), [options], random.Random(0))
    text = torch.tensor([[*options.prompt, *request.tokens]])
    full = model(text, depth=3).logits.log_softmax(-1)[0, 3:-1]
    assert torch.allclose(torch.tensor(request.result().logprobs).double(), full.gather(1, text[0, 4:, None])[:, 0], atol=1e-9)


@pytest.mark.long
def test_a_planted_neighbour_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model, draw = make("huginn-tiny"), random.Random(5)
    requested = [random_options(model, draw) for _ in range(5)]
    answers = [answer(model, options) for options in requested]
    monkeypatch.setattr("loopwright.model.keys.pool.Row.cell", lambda self, stack, group: self.starts[stack])  # one step for all
    scheduler = Scheduler(model, rows=3, tokens=60, chunk=4)
    assert check(model, *serve(scheduler, requested, draw), answers) > 0
