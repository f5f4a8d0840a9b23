"""The engine from outside: threads, text, bad input, closing."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from loopwright.generation import engine as module
from loopwright.generation.engine import Engine
from loopwright.generation.request import Request
from loopwright.generation.scheduler import Scheduler
from loopwright.model.parts.state import State
from tests.cases import noisy
from tests.generation.mix import alone, make
from tests.generation.tiny import letter_tokenizer, word_tokenizer
from tests.leaks import leaking

WORDS = word_tokenizer()


def test_results_are_those_of_generate() -> None:
    model = noisy("huginn-tiny")  # float32: the tokens are equal
    with Engine(model, WORDS, max_rows=3, max_tokens=80) as engine:
        results = engine.generate(["the cat sat", {"prompt": [4, 5], "depth": 1}, "a dog"], depth=3, max_new_tokens=5, stop=["w9"])
    for result, (text, depth) in zip(results, [("the cat sat", 3), ("cat dog", 1), ("a dog", 3)], strict=True):
        ids = WORDS(text, return_tensors="pt")["input_ids"]
        made = model.generate(ids, depth=depth, max_new_tokens=5, do_sample=False, eos_token_id=1, pad_token_id=1)[
            0, ids.shape[1] :
        ]
        said = WORDS.decode(made, skip_special_tokens=True)
        assert result.text == (said.split("w9")[0] if "w9" in said else said)
        assert result.depths == [depth] * len(result.tokens)


def test_control_words_in_the_text_of_an_answer() -> None:
    model = noisy("huginn-tiny")
    always: dict[str, Any] = {"logit_bias": {0: 1e6}, "max_new_tokens": 3}  # <unk>, which is a control word, as <end> is
    with Engine(model, WORDS, max_rows=3, max_tokens=80) as engine:
        options: list[dict[str, Any]] = [{}, {"skip_special_tokens": False}]
        options.append(options[1] | {"logit_bias": {1: 1e6}})
        silent, said, ended = (engine.submit([2], **always | one).result() for one in options)
        (kept,) = engine.generate(["the"], ignore_eos=True, skip_special_tokens=False, logit_bias={1: 1e6}, max_new_tokens=2)
    assert (silent.text, said.text, ended.text, kept.text) == ("", "<unk> <unk> <unk>", "", "<end> <end>")


def test_a_request_streams_and_draws_by_its_seed() -> None:
    model = make("huginn-tiny")
    with Engine(model, max_rows=2, max_tokens=64) as engine:
        same = [engine.submit([3, 4, 5], max_new_tokens=6, temperature=2.0, seed=seed) for seed in (1, 1, 2)]
        seen: list[int] = []
        called = engine.submit([3, 4, 5], max_new_tokens=6, temperature=2.0, seed=2, on_token=seen.append)
        tokens = [list(request) for request in same]
        assert tokens[0] == tokens[1] != tokens[2] == list(called) == seen
        assert same[0].result().tokens == tokens[0] == alone(model, same[0].options)


@pytest.mark.long
def test_many_threads_submit() -> None:
    model = make("huginn-tiny")
    answers: dict[int, Any] = {}
    with Engine(model, max_rows=3, max_tokens=64) as engine:

        def ask(number: int) -> None:
            answers[number] = engine.submit([number + 2, 5], depth=1 + number % 4, max_new_tokens=3).result(60)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for number in range(8):
            made = model.generate(torch.tensor([[number + 2, 5]]), depth=1 + number % 4, max_new_tokens=3, do_sample=False)
            assert answers[number].tokens == made[0, 2:].tolist()


MEANS = {
    "universal-act": {},
    "act": {"bias": 0.0},
    "halter": {"width": 8, "bias": 0.0},
}


def mean_model(kind: str, *, coda: int = 0) -> Any:
    """A model whose tokens halt at different steps, and which answers by the mean of its states."""
    model = noisy("universal-tiny", std=0.8, halting={"kind": kind, **MEANS[kind]}, coda_layers=coda).double()
    assert model.config.read_out == "expected"
    return model


@torch.no_grad()
@pytest.mark.parametrize("coda", [0, 1])
@pytest.mark.parametrize("kind", MEANS)
def test_a_model_that_answers_by_the_mean_of_its_states(kind: str, coda: int) -> None:
    """Full passes = decoding on a cache = the engine, whatever the neighbours, in prompt scores too."""
    model = mean_model(kind, coda=coda)
    prompts, tokens = [[3, 4, 5, 6, 7, 8, 9], [5, 6]], []
    for prompt in prompts:
        text = list(prompt)
        for _ in range(5):
            last, mixed = (model(torch.tensor([text]), depth=5, select=select).logits[0, -1] for select in ("last", None))
            assert (last - mixed).abs().max() > 1e-3
            text.append(int(mixed.argmax()))
        tokens.append(text[len(prompt) :])
        made = model.generate(torch.tensor([prompt]), depth=5, max_new_tokens=5, do_sample=False, eos_token_id=None)
        assert made[0, len(prompt) :].tolist() == tokens[-1]
    with Engine(model, max_rows=2, max_tokens=64, chunk_tokens=3, readings=5) as engine:
        results = engine.generate(prompts, depth=5, max_new_tokens=5, ignore_eos=True, prompt_logprobs=True)
        assert [result.tokens for result in results] == tokens
        scores = model(torch.tensor(prompts[:1]), depth=5).logits[0].log_softmax(-1)[range(6), prompts[0][1:]]
        assert [one.logprob for one in results[0].prompt_logprobs] == pytest.approx(scores.tolist(), abs=1e-9)
        requested: list[dict[str, Any]] = [{"draft_depth": 2}, {"exit": "never"}, {"step_tokens": 1}]
        for options in requested:
            if coda or kind == "universal-act":
                name = next(iter(options))
                with pytest.raises(ValueError, match=f"{name}: the model answers by the mean of its states and has"):
                    engine.submit(prompts[0], depth=5, **options)
            else:
                assert engine.submit(prompts[0], depth=5, max_new_tokens=5, ignore_eos=True, **options).result().tokens == tokens[0]
        if not coda and kind != "universal-act":  # leaves where its weights end
            left = engine.submit(prompts[0], depth=5, max_new_tokens=5, ignore_eos=True, exit="act").result()
            assert left.tokens == tokens[0] and min(left.depths) < 5


def test_logits_that_are_mixed_are_refused() -> None:
    model = noisy("ouro-1.4b-tiny", read_out="expected")
    with pytest.raises(ValueError, match="engine: read_out 'expected' mixes logits of all steps; allowed: 'last' or 'hub'"):
        Engine(model)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"prompt": []}, "prompt: it has no tokens"),
    ({"prompt": ""}, "prompt: it has no tokens"),
    ({"prompt": [96]}, "prompt: token 96; the model knows tokens 0 to 95"),
    ({"prompt": [-1]}, "prompt: token -1"),
    ({"prompt": [1.5]}, "prompt: token 1.5"),
    ({"depth": 0}, "depth: 0; allowed"),
    ({"depth": 7}, "depth: 7 is beyond max_steps=6"),
    ({"max_new_tokens": 0}, "max_new_tokens must be a whole number >= 1"),
    ({"prompt": [1] * 100}, "request: 103 tokens at depth 4 take 412 core cells and the pool has 320"),
    ({"min_new_tokens": 5}, "min_new_tokens must be a whole number from 0 to max_new_tokens=4 \\(got 5\\)"),
    ({"min_new_tokens": 1, "constrain": {"choice": ["a"]}}, "min_new_tokens: given with constrain"),
    ({"temperature": math.nan}, "temperature: nan; allowed"),
    ({"logit_bias": {200: 1.0}}, "logit_bias: token 200"),
    ({"seed": 2**64}, "seed must be a whole number"),
    ({"state_seed": 3}, "state_seed: 3 would change nothing"),
    ({"stop": [""]}, "stop: an empty string"),
    ({"priority": 0.5}, "priority must be a whole number"),
    ({"exit": "gat"}, "exit: unknown kind 'gat'; did you mean 'gate'?"),
    ({"exit": {"kind": "stable", "count": 0}}, r"exit \(stable\): count must be a whole number >= 1"),
    ({"exit": "act"}, "exit: 'act' needs a model that halts by ACT"),
    ({"exit": "change", "exit_keys": "forget"}, "exit_keys: 'forget'; allowed: backfill, copy"),
    ({"exit_keys": "copy"}, "exit_keys: 'copy' would change nothing"),
    ({"exit": "change", "draft_depth": 1}, "draft_depth: given with exit"),
    ({"draft_depth": 4}, "draft_depth must be 'auto', or a whole number >= 1 and below depth=4"),
    ({"prompt": None}, "prompt: None is neither text nor a list of token ids"),
    ({"prompt": 3}, "prompt: 3 is neither text nor a list of token ids"),
    ({"prompt": b"cat"}, "prompt: b'cat' is neither text"),
    ({"prompt": WORDS("the cat")}, r'prompt: a BatchEncoding of input_ids, .*; give its \["input_ids"\]'),
    ({"stop": None}, "stop: None; give a string, or a list"),
    ({"stop": 5}, "stop: 5; give a string, or a list"),
    ({"stop": [1.5]}, "stop: token 1.5; the model knows tokens 0 to 95"),
    ({"stop": [99999]}, "stop: token 99999; the model knows"),
    ({"logit_bias": [3, 4]}, r"logit_bias: \[3, 4\]; give a mapping"),
    ({"exit": {"kind": "change", "threshold": -1}}, r"exit \(change\): threshold must be a number >= 0 \(got -1\)"),
    ({"draft_tokens": -3}, r"draft_tokens must be a whole number >= 2 \(got -3\)"),
    ({"draft_depth": True}, r"draft_depth must be 'auto', or a whole number >= 1 and below depth=4 \(got True\)"),
    ({"draft_depth": "auto", "depth": 1}, "draft_depth must be 'auto', or a whole number >= 1 and below depth=1"),
    ({"draft_depth": "deep"}, r"draft_depth must be 'auto', or a whole number >= 1 and below depth=4 \(got 'deep'\)"),
    ({"draft_depth": 1, "draft_tokens": 1}, "draft_tokens must be a whole number >= 2"),
]


@pytest.fixture(scope="module")
def serving() -> Any:
    with Engine(make("ouro-1.4b-tiny", max_steps=6, end_norm="per-step"), WORDS, max_rows=2, max_tokens=80) as engine:
        yield engine


@pytest.mark.parametrize(("options", "message"), BAD, ids=[next(iter(options)) + str(i) for i, (options, _) in enumerate(BAD)])
def test_bad_input_is_one_clear_error_and_the_others_go_on(serving: Engine, options: dict[str, Any], message: str) -> None:
    good = {"prompt": [3, 4], "depth": 2, "max_new_tokens": 4, "seed": 0}
    before = serving.submit(**good)
    with pytest.raises(ValueError, match=message) as caught:
        serving.submit(**{"prompt": [3, 4], "max_new_tokens": 4, **options})
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=f"request 1: {message}"):
        serving.generate([good, {"prompt": [3, 4], "max_new_tokens": 4, **options}])
    assert before.result(60).tokens == serving.submit(**good).result(60).tokens


def test_the_vocabulary_of_constraints_is_made_once_whatever_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def slow(tokenizer: Any, size: int) -> object:
        time.sleep(0.02)
        made.append(object())
        return made[-1]

    monkeypatch.setattr(module, "ConstrainedVocabulary", slow)
    with Engine(make("huginn-tiny"), letter_tokenizer(), max_rows=1, max_tokens=16) as engine, ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda _: engine.constrained_vocabulary(), range(4)))
    assert len(made) == 1 and set(got) == set(made)


@pytest.mark.parametrize("kind", [KeyError, SystemExit])
def test_a_callback_that_fails_harms_nobody_else(serving: Engine, kind: type[BaseException]) -> None:
    def fails(token: int) -> None:
        raise kind("mine")

    bad, good = serving.submit([3, 4], on_token=fails, max_new_tokens=4), serving.submit([3, 4], max_new_tokens=4)
    with pytest.raises(kind, match="mine"):
        bad.result(60)
    assert len(good.result(60).tokens) == 4


@pytest.mark.parametrize("kind", [ZeroDivisionError, SystemExit])
def test_a_tick_that_fails_ends_its_requests_and_the_engine_goes_on(
    monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    def fails(*args: Any, **options: Any) -> None:
        raise kind

    model = make("huginn-tiny")
    with Engine(model, max_rows=2, max_tokens=64) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(model, "read_out", fails)
            with pytest.raises(kind):
                engine.submit([3, 4], max_new_tokens=4).result(60)
        assert len(engine.submit([3, 4], max_new_tokens=4).result(60).tokens) == 4


def test_the_worker_ends_when_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER", 0.01)
    engine = Engine(make("huginn-tiny"), max_rows=2, max_tokens=64)
    assert engine._worker is None
    for _ in range(2):
        engine.submit([3, 4], max_new_tokens=2).result(60)
        deadline = time.monotonic() + 10
        while engine._worker is not None and time.monotonic() < deadline:
            time.sleep(0.005)
        assert engine._worker is None


def test_closing_cancels_what_is_left() -> None:
    engine = Engine(make("huginn-tiny"), max_rows=1, max_tokens=2000)
    requests = [engine.submit([3, 4], max_new_tokens=1000) for _ in range(2)]
    next(iter(requests[0]))
    engine.close()
    engine.close()
    assert [request.result(0).finish_reason for request in requests] == ["cancelled"] * 2
    with pytest.raises(RuntimeError, match="engine: closed"):
        engine.submit([3])


def test_an_error_inside_the_context_does_not_wait() -> None:
    engine = Engine(make("huginn-tiny"), max_rows=1, max_tokens=2000)
    request = engine.submit([3, 4], max_new_tokens=1500)

    def fail() -> None:
        with engine:
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert request.result(0).finish_reason == "cancelled"


def test_leaving_the_context_waits_for_a_request_that_is_being_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    seating, seated = threading.Event(), Scheduler._start

    def slow(self: Scheduler, request: Any, row: Any) -> Any:
        seating.set()
        time.sleep(0.05)  # neither waiting nor running
        return seated(self, request, row)

    monkeypatch.setattr(Scheduler, "_start", slow)
    with Engine(make("huginn-tiny"), max_rows=1, max_tokens=64) as engine:
        request = engine.submit([3, 4], max_new_tokens=2)
        assert seating.wait(10)
    assert request.result(0).finish_reason == "length"


def test_an_interrupt_while_the_context_waits_closes_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    engine = Engine(make("huginn-tiny"), max_rows=1, max_tokens=64)
    monkeypatch.setattr(engine._wake, "wait_for", interrupted)
    with pytest.raises(KeyboardInterrupt), engine:
        pass
    with pytest.raises(RuntimeError, match="engine: closed"):
        engine.submit([3], max_new_tokens=1)


SCRIPT = """
import threading
from loopwright.generation.engine import Engine
from tests.generation.mix import make
engine, began = Engine(make("huginn-tiny"), max_tokens=8000), threading.Event()
request = engine.submit([3, 4], max_new_tokens=7000, on_token=lambda token: began.set())
began.wait(60)
"""


@pytest.mark.slow
def test_a_script_that_ends_while_a_request_runs_ends_well() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_open_engines_are_closed_when_the_interpreter_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_engines", set())
    engine = Engine(make("huginn-tiny"), max_rows=1, max_tokens=2000)
    request = engine.submit([3, 4], max_new_tokens=1500)
    module._close_all()
    assert request.result(0).finish_reason == "cancelled" and engine._worker is None


@pytest.mark.parametrize("way", ["result", "iterate", "generate"])
def test_waiting_inside_a_callback_is_refused(serving: Engine, way: str) -> None:
    own: list[Request] = []
    ready = threading.Event()

    def waits(token: int) -> None:
        ready.wait(10)
        if way == "result":
            own[0].result()
        elif way == "iterate":
            list(own[0])
        else:
            serving.generate([[3, 4]], max_new_tokens=2)

    own.append(serving.submit([3, 4], max_new_tokens=4, on_token=waits))
    ready.set()
    with pytest.raises(RuntimeError, match="request: waiting for it inside on_token would never end"):
        own[0].result(20)


def test_a_request_that_is_done_may_be_read_inside_a_callback(serving: Engine) -> None:
    done = serving.submit([3, 4], max_new_tokens=2)
    tokens, seen = done.result(60).tokens, []
    serving.submit([3, 4], max_new_tokens=1, on_token=lambda token: seen.append(done.result().tokens)).result(60)
    assert seen == [tokens]


def test_a_seed_is_drawn_only_where_one_is_used_and_not_from_torch(serving: Engine) -> None:
    before = torch.get_rng_state()
    seeds = [serving.submit([3, 4], max_new_tokens=1, temperature=1.0).result(60).seed for _ in range(2)]
    assert seeds[0] != seeds[1]
    assert serving.submit([3, 4], max_new_tokens=1).result(60).seed == 0
    assert torch.equal(torch.get_rng_state(), before)


class SeededInput(State):
    """A kind of the user's own that reads the seed."""

    seeded = True
    seed = 1

    def forward(self, e: torch.Tensor, positions: torch.Tensor, seed: Any) -> torch.Tensor:
        each = torch.as_tensor(self.seed if seed is None else seed).reshape(-1, 1, 1)
        return e * (each % 7 - 3)


def test_a_seeded_state_of_the_users_own_takes_a_seed() -> None:
    model = make("huginn-tiny", state={"kind": "input"})
    model.state = SeededInput()
    with Engine(model, max_rows=2, max_tokens=64) as engine:
        results = engine.generate([{"prompt": [3, 4], "state_seed": seed} for seed in (6, 2, None)], depth=1, max_new_tokens=6)
    for seed, result in zip((6, 2, 1), results, strict=True):
        made = model.generate(torch.tensor([[3, 4]]), depth=1, max_new_tokens=6, do_sample=False, state_seed=seed)
        assert result.tokens == made[0, 2:].tolist()
    assert results[0].tokens != results[1].tokens


def test_a_batch_of_prompts_is_not_one_prompt(serving: Engine) -> None:
    with pytest.raises(ValueError, match=r"prompt: an array of shape \(2, 3\); give one row of token ids"):
        serving.submit(torch.ones(2, 3, dtype=torch.long), max_new_tokens=1)
    ids = torch.tensor([3, 4, 5])
    one, row = (serving.submit(x, max_new_tokens=3).result(60).tokens for x in (ids, ids[None]))
    assert one == row


def test_ids_of_numpy_are_ids(serving: Engine) -> None:
    ids = np.array([3, 4, 5])
    answers = [serving.submit(x, max_new_tokens=3).result(60).tokens for x in ([3, 4, 5], ids, ids[None], list(ids))]
    assert answers == [answers[0]] * 4


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ("the cat", "generate: 'the cat' is not a list of prompts"),
        ({"prompt": [3]}, "generate: .* is not a list of prompts"),
        (None, "generate: None is not a list of prompts"),
        ([1, 2, 3], "request 0: prompt: 1 is neither text nor a list of token ids"),
    ],
)
def test_one_prompt_is_not_a_list_of_prompts(serving: Engine, prompts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        serving.generate(prompts, max_new_tokens=2)


def test_what_no_engine_can_serve() -> None:
    with pytest.raises(ValueError, match="engine: model is 'asura'; give a loaded one"):
        Engine("asura")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="engine: tokenizer is 'gpt2'; give a loaded one"):
        Engine(make("huginn-tiny"), "gpt2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_rows must be a whole number >= 1"):
        Engine(make("huginn-tiny"), max_rows=0)
    engine = Engine(make("huginn-tiny"), max_tokens=16)
    with pytest.raises(ValueError, match="text needs a tokenizer"):
        engine.submit("the cat")
    with pytest.raises(ValueError, match="stop: 'x' needs a tokenizer"):
        engine.submit([3], stop="x")
    engine.model.train()
    with pytest.raises(ValueError, match="training mode"):
        engine.submit([3], max_new_tokens=1)
    with pytest.raises(ValueError, match="beyond the learned positions"):
        Engine(make("stars-addition-tiny", positions="learned", max_position_embeddings=8), max_tokens=64).submit(
            [3] * 6, max_new_tokens=4
        )
    with pytest.warns(UserWarning, match="leaks future"):
        leaky = make("ouroboros-qwen2.5-3b-tiny", adapters=[{"kind": "controller", "pooling": "sequence", "leak_future": True}])
    with pytest.raises(ValueError, match="reads future tokens"):
        Engine(leaky)


@pytest.mark.parametrize("name", ["core", "state"])
def test_what_reads_the_future_and_does_not_say_so_is_refused_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scores of a prompt would be no likelihoods."""
    with pytest.raises(ValueError, match="engine: the model reads future tokens"):
        Engine(leaking(name, monkeypatch))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name", ["ouro-1.4b-tiny", "huginn-tiny", "ouroboros-qwen2.5-3b-tiny", "asura-tiny", "retrofit-llama-1b-tiny"]
)
def test_on_a_gpu_the_results_are_those_of_generate(name: str) -> None:
    model = noisy(name, std=0.1).cuda()
    steps = model.config.max_steps or 6
    requested = [{"prompt": [3 + i] * (2 + 3 * (i % 4)), "depth": 1 + i % steps} for i in range(9)]
    with Engine(model, max_rows=4, max_tokens=128) as engine:
        results = engine.generate(requested, max_new_tokens=6)
    for options, result in zip(requested, results, strict=True):
        ids = torch.tensor([options["prompt"]], device="cuda")
        made = model.generate(ids, depth=options["depth"], max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0)
        assert result.tokens == made[0, ids.shape[1] :].tolist()
