"""One generation config, one meaning: engine and streams give the tokens that `model.generate` gives under the same file."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig

import loopwright as lw
from loopwright.generation.engine import Engine
from loopwright.generation.generation_config import (
    IDLE,
    OBEYED,
    PLAIN,
    REFUSED,
    REFUSED_DRAWING,
    check_offered,
    end_tokens,
    least_tokens,
    new_tokens,
    settled,
    stop_strings,
    with_tokens_of,
)
from loopwright.generation.sampling import Draw, Sampling, gumbel
from loopwright.generation.stream import stream, stream_mixed
from tests.generation.mix import make
from tests.generation.tiny import letter_tokenizer

SMALL = {"hidden_size": 16, "intermediate_size": 16, "prelude_layers": 0, "core_layers": 1, "coda_layers": 0, "depth": 2}
WORDS = letter_tokenizer()


@contextmanager
def drawing_by(seed: int) -> Iterator[None]:
    """Lets transformers draw by the engine's noise: its own processors and warpers make the scores, and chance is the same."""
    with pytest.MonkeyPatch.context() as patch:
        length = [0]
        prepare = lw.LoopedForCausalLM.prepare_inputs_for_generation

        def counted(self: Any, input_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
            length[0] = input_ids.shape[1]
            return prepare(self, input_ids, *args, **kwargs)

        def drawn(probabilities: Tensor, num_samples: int) -> Tensor:
            assert probabilities.shape[0] == num_samples == 1
            noise = gumbel([Draw(Sampling(), seed, length[0])], probabilities.shape[-1], probabilities.device)
            return (probabilities.double().log() + noise).argmax(-1, keepdim=True)

        patch.setattr(lw.LoopedForCausalLM, "prepare_inputs_for_generation", counted)
        patch.setattr(torch, "multinomial", drawn)
        yield


def random_config(draw: random.Random) -> GenerationConfig:
    def maybe(value: Any, often: float = 0.4) -> Any:
        return value if draw.random() < often else None

    length = {"max_new_tokens": draw.randint(1, 8)} if draw.random() < 0.5 else {"max_length": draw.randint(7, 14)}
    return GenerationConfig(
        do_sample=draw.choice([None, False, True, True]),
        temperature=maybe(draw.choice([0.3, 1.0, 2.5])),
        top_k=maybe(draw.choice([0, 1, 5, 60])),
        top_p=maybe(draw.choice([0.2, 0.9, 1.0])),
        min_p=maybe(draw.choice([0.0, 0.05, 0.4])),
        repetition_penalty=maybe(draw.choice([0.5, 1.0, 1.3, 3.0])),
        eos_token_id=draw.choice([None, draw.randrange(96), draw.sample(range(96), 30)]),
        stop_strings=maybe(draw.sample("abcfghijklmopqrstuvwxyz", 4), 0.3),  # transformers reads the word "<end>", too
        pad_token_id=0,
        use_cache=maybe(False, 0.2),
        length_penalty=maybe(2.0, 0.2),
        renormalize_logits=maybe(True, 0.2),
        min_new_tokens=maybe(draw.randint(0, 6), 0.3),
        min_length=maybe(draw.randint(0, 12), 0.3),
        **(length if draw.random() < 0.8 else {}),
    )


def random_request(draw: random.Random, config: GenerationConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns fields of a request as the engine takes them, and as `generate` does."""
    own: dict[str, Any] = {}
    if draw.random() < 0.4:
        own = {"temperature": 1.7} if draw.random() < 0.5 else {"top_k": 3, "repetition_penalty": 1.0}
    if draw.random() < 0.2:
        own = {"temperature": 0}
    if draw.random() < 0.3 or (config.max_new_tokens is None and config.max_length is None):
        own["max_new_tokens"] = draw.randint(1, 8)
    theirs = dict(own)
    if own.get("temperature") == 0:
        theirs = {name: value for name, value in own.items() if name != "temperature"} | {"do_sample": False}
    elif {"temperature", "top_k"} & set(own):
        theirs["do_sample"] = True
        if config.do_sample is not True and config.top_k is None:
            theirs.setdefault("top_k", 0)  # no top_k was asked for by anybody
    return own, theirs


@torch.no_grad()
def compared(seeds: Iterable[int]) -> dict[str, int]:
    """Returns how many random configs of each kind were compared: greedy and drawn, and with a request's own fields."""
    model, counts = make("huginn-tiny", **SMALL), {"greedy": 0, "drawn": 0, "own": 0, "ended": 0}
    with Engine(model, WORDS, max_rows=3, max_tokens=80) as engine:
        for seed in seeds:
            draw = random.Random(seed)
            model.generation_config = config = random_config(draw)
            own, theirs = random_request(draw, config)
            prompt = [draw.randrange(95) for _ in range(draw.randint(1, 6))]
            ids = torch.tensor([prompt])
            # without an end token of its own the engine takes the tokenizer's
            eos = {"eos_token_id": WORDS.eos_token_id} if config.eos_token_id is None else {}
            with drawing_by(seed):
                made: Any = model.generate(ids, attention_mask=torch.ones_like(ids), tokenizer=WORDS, **eos, **theirs)
            expected = made[0, len(prompt) :].tolist()
            neighbour = engine.submit([3, 4, 5], max_new_tokens=4, temperature=0)
            result = engine.submit(prompt, seed=seed, **own).result(60)
            assert result.tokens == expected, (seed, own, config)
            neighbour.result(60)
            pieces: list[str] = []
            options = {name: own[name] for name in ("max_new_tokens",) if name in own}
            fields = Sampling(**{name: value for name, value in own.items() if name != "max_new_tokens"})
            told = stream(model, WORDS, ids, write=pieces.append, sampling=fields, seed=seed, **options)
            assert "".join(pieces) == WORDS.decode(expected, skip_special_tokens=True), (seed, own, config)
            assert told.tokens == len(expected)
            counts["drawn" if settled(model, fields).draws else "greedy"] += 1
            counts["own"] += bool(own)
            counts["ended"] += result.finish_reason == "stop"
    return counts


def test_a_few_random_configs() -> None:
    counts = compared((0, 20, 68, 132, 187, 262))  # those with a penalty are among them
    assert min(counts["greedy"], counts["drawn"], counts["own"]) > 0, counts


@pytest.mark.long
def test_random_configs() -> None:
    """200 configs, the engine and the plain stream against `generate`, greedy and by the same noise."""
    counts = compared(range(1000, 1200))
    print(counts)
    assert counts["greedy"] + counts["drawn"] == 200 and min(counts.values()) > 20, counts


def test_every_field_of_transformers_is_in_one_table() -> None:
    tables = [OBEYED, IDLE, tuple(REFUSED), tuple(REFUSED_DRAWING)]
    names = [name for table in tables for name in table]
    assert len(names) == len(set(names))
    assert set(names) == {name for name in vars(GenerationConfig()) if not name.startswith("_")}


REFUSALS: list[tuple[str, Any]] = [
    ("num_beams", 4), ("no_repeat_ngram_size", 2), ("bad_words_ids", [[3]]), ("suppress_tokens", [1]),
    ("sequence_bias", [[[3], 1.0]]), ("guidance_scale", 2.0), ("forced_eos_token_id", 2), ("max_time", 1.0), ("penalty_alpha", 0.5),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), REFUSALS)
def test_what_only_generate_offers_is_refused_by_name(name: str, value: Any) -> None:
    model = make("huginn-tiny", **SMALL)
    engine = Engine(model, WORDS, max_rows=1, max_tokens=40)
    setattr(model.generation_config, name, value)
    message = rf"^generation_config: {name} is .*, which only model.generate offers; set it to "
    with pytest.raises(ValueError, match=message) as caught:
        Engine(model, WORDS)
    assert "\n" not in str(caught.value)
    with engine, pytest.raises(ValueError, match=message):
        engine.submit([3])
    with pytest.raises(ValueError, match=message):
        stream(model, WORDS, torch.tensor([[3]]), write=print)
    with pytest.raises(ValueError, match=message):
        stream_mixed(model, WORDS, torch.tensor([[3]]), write=print, draft_depth=1)


def test_cuts_that_are_not_offered_are_refused_where_tokens_are_drawn() -> None:
    config = GenerationConfig(typical_p=0.5)
    check_offered(config, draws=False)  # as `generate`, which reads them nowhere else
    with pytest.raises(ValueError, match=r"generation_config: typical_p is 0.5"):
        check_offered(config, draws=True)


def test_values_that_mean_nothing_are_refused() -> None:
    model = make("huginn-tiny", **SMALL)
    model.generation_config = GenerationConfig(do_sample=True, temperature=0)
    with pytest.raises(ValueError, match="generation_config: temperature is 0 where tokens are drawn; set do_sample to false"):
        settled(model, Sampling())
    assert not settled(model, Sampling(temperature=0)).draws
    model.generation_config = GenerationConfig(do_sample=True, top_p=3.0)
    with pytest.raises(ValueError, match=r"generation_config: top_p: 3.0; allowed: from 0 to 1"):
        settled(model, Sampling())
    model.generation_config = GenerationConfig(max_length=5)
    with pytest.raises(ValueError, match="max_length 5 leaves no room after a prompt of 5 tokens; give max_new_tokens"):
        new_tokens(model, 5, 128)
    assert new_tokens(model, 2, 128) == 3


MALFORMED: list[tuple[str, Any]] = [
    ("do_sample", 1), ("do_sample", "yes"), ("eos_token_id", "34"), ("eos_token_id", ["34"]), ("eos_token_id", True),
    ("eos_token_id", 3.0), ("stop_strings", ""), ("stop_strings", ["a", ""]), ("stop_strings", [1]), ("stop_strings", 7),
    ("max_new_tokens", 2.5), ("max_new_tokens", True), ("max_new_tokens", "7"), ("max_length", 5.5), ("max_length", 0),
    ("min_new_tokens", -1), ("min_length", 2.5),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), MALFORMED)
def test_values_of_another_form_are_refused_on_every_path(name: str, value: Any) -> None:
    model, ids = make("huginn-tiny", **SMALL), torch.tensor([[3]])
    engine = Engine(model, WORDS, max_rows=1, max_tokens=40)
    setattr(model.generation_config, name, value)
    message = rf"^generation_config: {name} is .*; allowed: "
    for ask in (
        lambda: Engine(model, WORDS),
        lambda: engine.submit([3]),
        lambda: stream(model, WORDS, ids, write=print),
        lambda: stream_mixed(model, WORDS, ids, write=print, draft_depth=1),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            ask()
        assert "\n" not in str(caught.value)
    engine.close()


@pytest.mark.parametrize("form", [tuple, torch.tensor])
def test_end_tokens_may_be_a_tuple_or_a_tensor_as_in_generate(form: Any) -> None:
    model, ids = make("huginn-tiny", **SMALL), torch.tensor([[3, 5]])
    plain = model.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None)[0, 2:].tolist()
    model.generation_config.eos_token_id = form([plain[2], 90])
    said = model.generate(ids, max_new_tokens=6, pad_token_id=0)[0, 2:].tolist()
    with Engine(model, WORDS, max_rows=1, max_tokens=40) as engine:
        assert engine.submit(ids, max_new_tokens=6).result(60).tokens == said
    assert len(said) < 6
    assert stream(model, WORDS, ids, write=lambda text: None, max_new_tokens=6).tokens == len(said)


@pytest.mark.parametrize("end", [[], -1, 500, [500, -2, -96]])
def test_end_tokens_that_the_model_never_says_end_nothing_and_leave_the_others_alone(end: Any) -> None:
    model, ids = make("huginn-tiny", **SMALL), torch.tensor([[3, 5]])
    plain = model.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None)[0, 2:].tolist()
    model.generation_config.eos_token_id = [end, plain[0] - 96] if isinstance(end, int) else end
    assert end_tokens(model, WORDS) == []
    with Engine(model, WORDS, max_rows=2, max_tokens=80) as engine:
        requests = [engine.submit(ids, max_new_tokens=6, min_new_tokens=least) for least in (0, 6)]
        assert [request.result(60).tokens for request in requests] == [plain, plain]
    assert stream(model, WORDS, ids, write=lambda text: None, max_new_tokens=6).tokens == 6


def test_a_least_length_holds_back_end_tokens_alone() -> None:
    """As in transformers; a request's own holds back what it gives itself, too, and wins."""
    model, ids = make("huginn-tiny", **SMALL), torch.tensor([[3, 5]])
    plain = model.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None)[0, 2:].tolist()
    model.generation_config = GenerationConfig(eos_token_id=plain[0], min_new_tokens=3, min_length=8, pad_token_id=0)
    later = model.generate(ids, max_new_tokens=6, eos_token_id=plain[0])[0, 2:].tolist()
    assert len(later) >= 3 and later[0] != plain[0]
    word = WORDS.decode(later[:1])
    with Engine(model, WORDS, max_rows=2, max_tokens=80) as engine:
        ask = {
            "plain": {}, "own": {"min_new_tokens": 0}, "string": {"stop": word}, "token": {"stop": [later[0]]},
            "own string": {"stop": word, "min_new_tokens": 2}, "no end": {"ignore_eos": True},
            "form": {"constrain": {"choice": [word]}}, "short": {"max_new_tokens": 2},
        }  # fmt: skip
        found = {name: engine.submit(ids, **{"max_new_tokens": 6, **options}).result(60).tokens for name, options in ask.items()}
    assert found["plain"] == later and found["own"] == plain[:1] and found["no end"] == plain
    assert found["string"] == found["token"] == later[:1] and len(found["own string"]) >= 2
    assert WORDS.decode(found["form"], skip_special_tokens=True) == word and found["short"] == later[:2]
    model.generation_config.min_new_tokens = None
    assert least_tokens(model, 2) == 6 and least_tokens(model, 9) == 0


def test_a_penalty_of_one_counts_nothing() -> None:
    model = make("huginn-tiny", **SMALL)
    model.generation_config = GenerationConfig(repetition_penalty=1.3, top_k=7, temperature=0.4)
    assert settled(model, Sampling()) == Sampling(repetition_penalty=1.3)
    assert not settled(model, Sampling(repetition_penalty=1.0)).changes_scores
    assert settled(model, Sampling(top_p=0.9)) == Sampling(0.4, 0.9, 7, repetition_penalty=1.3)


def test_special_tokens_stay_the_models_own() -> None:
    own = GenerationConfig(eos_token_id=[3, 4], pad_token_id=5, top_k=7, do_sample=True)
    plain = with_tokens_of(own, None)
    assert (plain.eos_token_id, plain.pad_token_id, plain.top_k, plain.do_sample) == ([3, 4], 5, None, None)
    other = with_tokens_of(own, GenerationConfig(eos_token_id=9, top_p=0.5))
    assert (other.eos_token_id, other.pad_token_id, other.top_k, other.top_p) == (9, 5, None, 0.5)


def test_the_plain_call_is_free_of_the_config() -> None:
    model, ids = make("huginn-tiny", **SMALL), torch.tensor([[3, 4, 5]])
    plain = model.generate(ids, max_new_tokens=5, eos_token_id=None, do_sample=False)
    told = {
        "do_sample": True,
        "repetition_penalty": 3.0,
        "stop_strings": ["a"],
        "max_length": 4,
        "min_new_tokens": 3,
        **dict(REFUSALS),
    }
    model.generation_config = GenerationConfig(**{name: value for name, value in told.items() if name != "guidance_scale"})
    assert stop_strings(model) == ["a"]
    assert torch.equal(model.generate(ids, max_new_tokens=5, eos_token_id=None, pad_token_id=0, **PLAIN), plain)
