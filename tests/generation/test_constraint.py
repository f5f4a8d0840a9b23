"""What a grammar lets through has its form, and every text of that form gets through; mistakes are said in one line."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.generation import constraints as module
from loopwright.generation.constraints import ConstrainedVocabulary, GrammarState, parse_constraint
from loopwright.generation.sampling import Draw, Sampling, sample
from loopwright.generation.stream import encode, stream
from tests.generation.mix import make
from tests.generation.tiny import byte_tokenizer, letter_tokenizer, word_tokenizer

pytest.importorskip("llguidance")
BYTES, LETTERS = byte_tokenizer(), letter_tokenizer()
END = 95  # of the letters
VOCABULARY = ConstrainedVocabulary(LETTERS, 96)

# regular expressions that Python's `re` and the library read alike
PATTERNS = st.recursive(
    st.sampled_from(["a", "b", "[a-c]", "x", r"\d", " ", r"\."]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["?", "*", "+", "{1,2}"])).map(lambda two: f"(?:{two[0]}){two[1]}"),
    ),
    max_leaves=6,
)


def walk(state: GrammarState, draw: random.Random, longest: int = 12) -> str | None:
    """Returns the text of an answer that is drawn among what is allowed; None where it is longer."""
    tokens: list[int] = []
    while not state.ended:
        if len(tokens) == longest:
            return None
        assert state.allowed is not None
        tokens.append(draw.choice(state.allowed.nonzero().flatten().tolist()))
        state.take(tokens[-1:])
    assert state.error is None and state.taken == len(tokens)
    return LETTERS.decode(tokens, skip_special_tokens=True)


@pytest.mark.long
@settings(max_examples=25)
@given(PATTERNS, st.randoms(use_true_random=False))
def test_answers_match_their_pattern(pattern: str, draw: random.Random) -> None:
    if re.fullmatch(pattern, "") is not None:
        pattern += "z"
    constraint = VOCABULARY.constraint({"regex": pattern}, [END])
    for _ in range(4):
        text = walk(constraint.begin(), draw)
        assert text is None or re.fullmatch(pattern, text), (pattern, text)


@settings(max_examples=40)
@given(PATTERNS, st.text("abcx0. ", min_size=1, max_size=4))
def test_a_text_gets_through_where_it_matches(pattern: str, text: str) -> None:
    pattern = f"(?:{pattern})|q"  # never empty alone
    state = VOCABULARY.constraint({"regex": pattern}, [END]).begin()
    for letter in LETTERS(text)["input_ids"] + [END]:
        if state.ended and letter == END:
            break  # nothing else could follow
        if state.allowed is None or not state.allowed[letter]:
            assert re.fullmatch(pattern, text) is None
            return
        state.take([letter])
    assert re.fullmatch(pattern, text) is not None


def test_choices_and_letters_of_several_bytes() -> None:
    texts = ['a "b"', "c\nd", "ü🙂", "\x7f\x00\\\x7f"]
    constraint, seen = ConstrainedVocabulary(BYTES, 257).constraint({"choice": texts}, [256]), set()
    for number in range(16):
        state, tokens = constraint.begin(), []
        while state.allowed is not None:
            tokens.append(random.Random(number).choice(state.allowed.nonzero().flatten().tolist()))
            state.take(tokens[-1:])
        seen.add(BYTES.decode(tokens))
    assert seen == set(texts)


@pytest.mark.parametrize(
    ("text", "passes"),
    [('{"a":1}', True), ('{\n  "a": [\n    1\n  ]\n}', True), ('{  "a":1}', False), ('{"a":1}}', False), ('{"a":', False)],
)
def test_json_with_little_whitespace(text: str, passes: bool) -> None:
    state = ConstrainedVocabulary(BYTES, 257).constraint({"json": {"type": "object"}}, [256]).begin()
    tokens = BYTES(text)["input_ids"]
    state.take(tokens)
    assert (state.ended and state.error is None and state.taken == len(tokens)) == passes


@pytest.mark.parametrize("ends", [(END,), ()])
def test_the_end_token_stands_where_the_answer_is_complete(ends: tuple[int, ...]) -> None:
    state = VOCABULARY.constraint({"regex": "[0-9]{1,2}"}, ends).begin()
    assert state.allowed is not None and not state.allowed[END]
    later = state.after(LETTERS("1")["input_ids"])
    assert not state.taken and later.allowed is not None and bool(later.allowed[END]) == bool(ends)
    assert later.after(LETTERS("2")["input_ids"]).ended and not later.ended
    ended = later.after([END])
    assert ended.ended and (ended.error is None) == bool(ends)
    more = later.after([*LETTERS("2")["input_ids"], 7, 8])  # what is drawn behind the end belongs to nobody
    assert more.ended and more.taken == 2 and more.error is None


def test_masked_before_the_cuts_and_after_nothing_else() -> None:
    allowed = VOCABULARY.constraint({"regex": "[ab]"}).begin()
    logits = torch.zeros(1, 96)
    a, b, c = LETTERS("abc")["input_ids"]
    logits[0, c], logits[0, a], logits[0, b] = 9.0, 1.0, 2.0
    greedy = [Draw(Sampling(), 0, 0)]
    assert sample(logits, greedy).item() == c and sample(logits, greedy, None, [allowed]).item() == b
    top = [Draw(Sampling(temperature=1.0, top_k=1, min_p=0.9, top_p=0.1), seed, 0) for seed in range(5)]
    assert set(sample(logits.expand(5, -1), top, None, [allowed] * 5).tolist()) == {b}
    biased = [Draw(Sampling(logit_bias={a: 5.0, c: 50.0}), 0, 0)]
    assert sample(logits, biased, None, [allowed]).item() == a


def test_a_token_the_model_does_not_know_is_no_way_out() -> None:
    few = ConstrainedVocabulary(LETTERS, 40)  # the model knows fewer than its tokenizer
    with pytest.raises(ValueError, match=r"^constrain\.regex: no way on after 0 tokens of the answer \(the model knows no"):
        few.constraint({"regex": "[x-z]+"})
    state = few.constraint({"regex": "1x"}).begin()
    state.take(LETTERS("1")["input_ids"])
    assert state.ended and state.allowed is None and (state.error or "").startswith("no way on after 1 tokens")
    wide = ConstrainedVocabulary(LETTERS, 128).constraint({"regex": "z"}, [END]).begin()  # and here more
    assert wide.allowed is not None and wide.allowed.nonzero().flatten().tolist() == LETTERS("z")["input_ids"]


def test_an_answer_that_uses_up_its_states_leaves_the_others_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEXER_STATES", 400)
    form = {"regex": "[ab]*a[ab]{18}c"}  # a state for each of the last 18 letters
    asked = [VOCABULARY.constraint(form, [END]) for _ in range(2)]
    first, *others = asked[0].begin(), asked[0].begin(), asked[1].begin()
    draw = random.Random(0)
    first.take(LETTERS("".join(draw.choices("ab", k=1000)))["input_ids"])
    assert first.error is not None and first.taken < 1000
    for state in [*others, VOCABULARY.constraint(form, [END]).begin()]:
        state.take(LETTERS("ab" * 20)["input_ids"])
        assert state.error is None and state.taken == 40


def test_end_tokens_that_the_model_does_not_know_end_nothing() -> None:
    state = ConstrainedVocabulary(LETTERS, 40).constraint({"regex": "1{1,2}"}, [END, 7]).begin()
    state.take(LETTERS("1")["input_ids"])
    assert state.allowed is not None and state.allowed.nonzero().flatten().tolist() == sorted([7, *LETTERS("1")["input_ids"]])


BAD: list[tuple[Any, str]] = [
    ({"regex": "[0-9"}, "constrain.regex: unclosed character class"),
    ({"regex": "(?=a)b"}, "constrain.regex: look-around, .* is not supported"),
    ({"regex": ""}, "constrain.regex: '' allows nothing but an empty answer"),
    ({"regex": 5}, "constrain.regex: 5; give a regular expression as text"),
    ({"regex": "a" * 200_000}, "constrain.regex: .* characters; allowed: at most 100,000"),
    ({"json": {"type": "obj"}}, "constrain.json: Invalid type: obj"),
    ({"json": {"$ref": "http://localhost/x"}}, "constrain.json: Resource 'http://localhost/x' is not present"),
    ({"json": "{"}, "constrain.json: '{'; give a JSON schema as a mapping"),
    ({"json": {"not": {}}}, "constrain.json: Unimplemented keys"),
    ({"choice": "yes"}, "constrain.choice: 'yes'; give a list of texts"),
    ({"choice": [""]}, "constrain.choice: "),
    ({"rexeg": "a"}, "constrain: unknown 'rexeg'; did you mean 'regex'"),
    ({}, "constrain: {}; give one of json, regex, choice"),
    ({"regex": "a", "choice": ["b"]}, "constrain: .*; give one of json, regex, choice"),
    ("a", "constrain: 'a'; give one of"),
]


@pytest.mark.parametrize(("form", "message"), BAD)
def test_mistakes_are_said_in_one_line(form: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        VOCABULARY.constraint(form)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_tokenizers_that_cannot_be_spelled_and_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^constrain: llguidance cannot spell this tokenizer's tokens"):
        ConstrainedVocabulary(word_tokenizer(), 96)
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"^constrain: llguidance is not installed; pip install 'loopwright\[constrain\]'$"):
        ConstrainedVocabulary(LETTERS, 96)


def test_the_words_of_the_command_line(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "integer"}')
    assert parse_constraint("regex:a:b") == {"regex": "a:b"} and parse_constraint("choice:a,b c") == {"choice": ["a", "b c"]}
    assert parse_constraint(f"json:{schema}") == {"json": {"type": "integer"}}
    with pytest.raises(FileNotFoundError, match=r"constrain: nosuch.json: there is no such file; give a file with a JSON schema"):
        parse_constraint("json:nosuch.json")
    for word in ("regex", "rexeg:a", ""):
        with pytest.raises(ValueError, match=r"^constrain: .*; write regex:PATTERN, choice:A,B or json:FILE"):
            parse_constraint(word)


def test_a_streamed_answer_is_json_and_ends_with_it() -> None:
    model = make("huginn-tiny", hidden_size=16, intermediate_size=16)
    schema = {"type": "object", "properties": {"a": {"enum": [1, 22]}}, "required": ["a"]}
    constraint = VOCABULARY.constraint({"json": schema | {"additionalProperties": False}}, [END])
    pieces: list[str] = []
    ids = encode(LETTERS, "x", 96)
    statistics = stream(
        model, LETTERS, ids, write=pieces.append, max_new_tokens=100, depth=1, constraint=constraint,
        sampling=Sampling(logit_bias={LETTERS(" ")["input_ids"][0]: -50.0}),
    )  # fmt: skip
    answer = json.loads("".join(pieces))
    assert answer["a"] in (1, 22) and statistics.tokens < 20
