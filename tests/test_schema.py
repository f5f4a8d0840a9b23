"""Plain data: kinds and sections, YAML, overrides, and what a value must be."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from loopwright.schema import (
    MOST_NUMBER,
    Given,
    check_choice,
    check_count,
    check_form,
    check_number,
    check_numbers,
    check_whole,
    differences,
    is_number,
    is_whole,
    merge,
    parse_overrides,
    read_yaml,
    refuse_unknown,
    suggest,
    write_yaml,
)

NAMES = st.text("abcxyz", min_size=1, max_size=4)
PLAIN = st.one_of(st.integers(-9, 9), st.booleans(), st.floats(-9, 9), NAMES)
TREES = st.recursive(PLAIN, lambda leaves: st.dictionaries(NAMES, leaves, max_size=3), max_leaves=8)
MAPPINGS = st.dictionaries(NAMES, TREES, max_size=4)


def test_suggest_names_the_nearest_and_lists_all():
    assert suggest("deepth", ["width", "depth"]) == "did you mean 'depth'? allowed: depth, width"
    assert suggest("zzz", ["width", "depth"]) == "allowed: depth, width"
    assert suggest("anything", []) == "allowed: nothing"
    assert suggest("deepth-tiny", ["width", "depth"], "-tiny") == "did you mean 'depth-tiny'? allowed: depth, width"
    assert suggest("deepth", ["width", "depth"], "-tiny") == "did you mean 'depth'? allowed: depth, width"


def test_refuse_unknown_lists_every_unknown_name():
    refuse_unknown("here", ["a", "b"], ["a", "b", "c"])
    refuse_unknown("here", [], [])
    with pytest.raises(ValueError, match=r"^here: unknown 'wdith', 'q'; did you mean 'width'\? allowed: depth, width$"):
        refuse_unknown("here", ["depth", "wdith", "q"], ["depth", "width"])


def test_refuse_unknown_takes_generators():
    with pytest.raises(ValueError, match="unknown 'b'"):
        refuse_unknown("here", iter("ab"), iter("a"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["a=1"], {"a": 1}),
        (["a.b.c=0.5", "a.b.d=yes please"], {"a": {"b": {"c": 0.5, "d": "yes please"}}}),
        (["lr=3e-4", "eps=-1.5E5", "x=[.5e1]", "s=3e", "e=e4"], {"lr": 3e-4, "eps": -1.5e5, "x": [5.0], "s": "3e", "e": "e4"}),
        (["x=[1, two, null]"], {"x": [1, "two", None]}),
        (["x={kind: noise, std: 0.1}"], {"x": {"kind": "noise", "std": 0.1}}),
        (["x="], {"x": None}),
        (["x=true", "x=false"], {"x": False}),
        (["url=a=b"], {"url": "a=b"}),
        ([], {}),
    ],
)
def test_overrides(words, expected):
    assert parse_overrides(words) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "mine.yaml, line 3: not valid YAML ('a' stands in line 1 and again in line 3; allowed: once)"),
        ("x:\n  lr: 1\n  lr: 1", "mine.yaml, line 3: not valid YAML ('lr' stands in line 2 and again in line 3; allowed: once)"),
        ("x: {a: 1, a: 2}", "mine.yaml, line 1: not valid YAML ('a' stands in line 1 and again in line 1; allowed: once)"),
        ("x:\n- {1: a,\n   1: b}", "mine.yaml, line 3: not valid YAML ('1' stands in line 2 and again in line 3; allowed: once)"),
    ],
)
def test_a_key_that_stands_twice_is_refused_with_both_lines(text, message):
    with pytest.raises(ValueError) as caught:
        read_yaml(text, "mine.yaml")
    assert str(caught.value) == message
    with pytest.raises(ValueError, match="not valid YAML"):
        parse_overrides(["x={a: 1, a: 2}"])


def test_a_merged_key_may_be_overridden():
    text = "base: &base {x: 1, y: 1}\na: &a {<<: *base, x: 2}\nb: {<<: *a, y: 3}\nc: [1, '1', {1: a, '1': b}]"
    found = read_yaml(text, "mine.yaml")
    assert found["a"] == {"x": 2, "y": 1} and found["b"] == {"x": 2, "y": 3} and found["c"][2] == {1: "a", "1": "b"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["depth"], "'depth' is not of the form name=value"),
        (["=3"], "'=3' is not of the form name=value"),
        (["a=[1"], "'a', line 1: not valid YAML (expected ',' or ']', but got '<stream end>')"),
        (["a=1", "a.b=2"], "'a.b=2' sets a field of 'a', which already has a plain value"),
    ],
)
def test_overrides_that_are_refused(words, message):
    with pytest.raises(ValueError) as caught:
        parse_overrides(words)
    assert str(caught.value) == f"override: {message}"


def test_merge_lays_changes_over():
    old = {"a": 1, "gate": {"kind": "mix", "weight": 0.5}, "deep": {"x": {"y": 1, "z": 2}}}
    new = merge(old, {"b": 2, "gate": {"weight": 0.25}, "deep": {"x": {"y": 3}}})
    assert new == {"a": 1, "b": 2, "gate": {"kind": "mix", "weight": 0.25}, "deep": {"x": {"y": 3, "z": 2}}}


def test_merge_reaches_into_lists_by_place():
    old = {"penalties": [{"kind": "a", "weight": 1}, {"kind": "b"}]}
    assert merge(old, {"penalties": {"1": {"weight": 3}}}) == {
        "penalties": [{"kind": "a", "weight": 1}, {"kind": "b", "weight": 3}]
    }
    assert merge(old, {"penalties": {"0": {"kind": "c"}}}) == {"penalties": [{"kind": "c"}, {"kind": "b"}]}
    assert merge({"depths": [1, 2]}, {"depths": {0: 4}}) == {"depths": [4, 2]} and old["penalties"][0]["weight"] == 1
    with pytest.raises(ValueError, match="penalties is empty; give the whole list"):
        merge({"penalties": []}, {"penalties": {"0": {"weight": 3}}})


def test_another_kind_replaces_the_old_options():
    old = {"state": {"kind": "noise", "std": 0.1}}
    assert merge(old, {"state": {"kind": "zero"}}) == {"state": {"kind": "zero"}}
    assert merge(old, {"state": {"kind": "noise", "scale": 2}}) == {"state": {"kind": "noise", "std": 0.1, "scale": 2}}
    assert merge(old, {"state": None}) == {"state": None}


@pytest.mark.long
@given(MAPPINGS, MAPPINGS)
def test_merge_is_idempotent_and_changes_nothing_in_place(old, changes):
    before = copy.deepcopy((old, changes))
    once = merge(old, changes)
    assert (old, changes) == before
    assert merge(once, changes) == once
    assert merge(old, {}) == old


@given(st.dictionaries(NAMES, st.integers(-99, 99), min_size=1, max_size=4))
def test_flat_overrides_round_trip(values):
    assert parse_overrides(f"{name}={value}" for name, value in values.items()) == values


def test_what_was_passed_from_python_is_never_built_from_a_recipe() -> None:
    with pytest.raises(ValueError, match=r"the data \(Mine\) was passed from Python, so the recipe cannot build it; pass it again"):
        Given("the data (Mine)")


# what a word is by YAML 1.2's core schema; YAML 1.1 has other numbers, more switches, and dates
WORDS = {
    "020": 20, "-020": -20, "+5": 5, "0o17": 15, "0x1F": 31, "08": 8, "1e4": 10_000, "1E+3": 1_000, "1.5e1": 15, "3e-4": 3e-4,
    "1e-4": 1e-4, "-1.5E5": -150_000, "5.": 5.0, ".5": 0.5, "1.0": 1.0, "1e20": 1e20, "0.0": 0.0, "1:30": "1:30",
    "1:30.5": "1:30.5",
    "1_000": "1_000", "0b11": "0b11", "0x": "0x", "1e": "1e", "yes": "yes", "No": "No", "on": "on", "OFF": "OFF", "y": "y",
    "true": True, "True": True, "FALSE": False, "tRUE": "tRUE", "null": None, "~": None, "Null": None, "nULL": "nULL",
    "2024-01-01": "2024-01-01", "2001-12-14t21:59:43.10-05:00": "2001-12-14t21:59:43.10-05:00", "=": "=",
}  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_words_are_what_yaml_1_2_says_and_text_comes_back_as_text(word: str) -> None:
    for found in (read_yaml(f"a: {word}", "x")["a"], read_yaml(f"[{word}]", "x")[0], parse_overrides([f"a={word}"])["a"]):
        assert found == WORDS[word] and type(found) is type(WORDS[word])
    written = write_yaml({"value": WORDS[word], "text": word})
    back = read_yaml(written, "x")
    assert back == {"value": WORDS[word], "text": word} and isinstance(back["text"], str)
    older = yaml.safe_load(written)  # who reads by YAML 1.1 finds the same
    assert older == back


@given(
    st.one_of(
        st.text(max_size=8), st.from_regex(r"[-+0-9.eE_:xob]{1,6}", fullmatch=True), st.floats(), st.integers(-(2**63), 2**63 - 1)
    )
)
@example("a\x85b")
def test_what_is_written_is_what_is_read(value: object) -> None:
    back = read_yaml(write_yaml([value]), "x")[0]
    assert back == value or value != value
    assert type(back) is type(value) or (isinstance(value, float) and value == int(value))


@pytest.mark.parametrize(
    ("value", "form", "message"),
    [
        ("yes", "bool", "x is 'yes'; allowed: true or false (write true: in YAML 1.2 yes is text)"),
        ("Off", "bool | None", "x is 'Off'; allowed: true or false or nothing (null) (write false: in YAML 1.2 off is text)"),
        (
            "200_000",
            "int | None",
            "x is '200_000'; allowed: a whole number or nothing (null) (write 200000: in YAML 1.2 a number has no _)",
        ),
        ("1:30", "int", "x is '1:30'; allowed: a whole number"),
        ("no", "float", "x is 'no'; allowed: a number"),
    ],
)
def test_what_older_yaml_took_for_a_number_or_a_switch_is_refused_with_what_to_write(value: str, form: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        check_form("x", value, form)
    assert str(caught.value) == message


def test_differences_are_named_by_their_way() -> None:
    one = {"a": {"b": 1, "c": [1, {"d": 2}]}, "e": None, "f": [1], "g": {}}
    two = {"a": {"b": 1, "c": [1, {"d": 3}]}, "f": [1, 2], "g": {"h": 1}}
    assert list(differences([one, two, one])) == [("a.c.1.d", [2, 3, 2]), ("f", [[1], [1, 2], [1]]), ("g.h", [None, 1, None])]
    assert not list(differences([one, copy.deepcopy(one)]))


def test_what_fits_comes_back() -> None:
    assert check_count("here", "rows", 3, least=3) == 3
    assert check_numbers("here", "lengths", [3, 1, 3]) == (1, 3)
    assert check_numbers("here", "longer", (), apart_from=(1,)) == ()
    assert check_choice("here", "mode", "a", ("a", "b")) == "a"


@pytest.mark.parametrize(
    ("check", "arguments", "message"),
    [
        (check_count, (2, 3), r"here: x must be a whole number >= 3 \(got 2\)"),
        (check_count, (True,), r"here: x must be a whole number >= 0 \(got True\)"),
        (check_count, ("2",), r"here: x must be a whole number >= 0 \(got '2'\)"),
        (check_numbers, ([0],), r"here: x must be a list of whole numbers >= 1 \(got \[0\]\)"),
        (check_numbers, ("12",), r"here: x must be a list of whole numbers >= 1 \(got '12'\)"),
        (check_numbers, (4,), r"here: x must be a list of whole numbers >= 1 \(got 4\)"),
        (check_numbers, ([],), "here: x is empty; give at least one number"),
        (check_numbers, ([2, 3], (3, 4)), r"here: x must be numbers that are not trained on \(got \[2, 3\]; 3 is trained on\)"),
        (check_choice, ("plian", ("plain", "masked")), "here: x is 'plian'; did you mean 'plain'\\? allowed: masked, plain"),
    ],
)
def test_refusals(check: Callable[..., Any], arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check("here", "x", *arguments)


def test_counts_and_lengths_have_a_bound():
    for value in (2**31, 10**400):
        with pytest.raises(ValueError, match=r"^here: rows must be at most 2,147,483,647 \(got .*\)$"):
            check_count("here", "rows", value)
    with pytest.raises(ValueError, match=r"^here: digits must be whole numbers of at most 4,096 \(got .*\)$"):
        check_numbers("here", "digits", [1, 10**9])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: check_whole("x", 0, 1), r"^x must be a whole number >= 1 \(got 0\)$"),
        (lambda: check_whole("x", 1.0), r"^x must be a whole number \(got 1.0\)$"),
        (lambda: check_whole("x", True, 0), r"^x must be a whole number >= 0 \(got True\)$"),
        (lambda: check_number("x", -1, least=0), r"^x must be >= 0 \(got -1\)$"),
        (lambda: check_number("x", 0, above=0, most=1), r"^x must be > 0 and <= 1 \(got 0\)$"),
        (lambda: check_number("x", 1, least=0, below=1), r"^x must be >= 0 and < 1 \(got 1\)$"),
        (lambda: check_number("x", math.nan, least=0), r"^x must be >= 0 \(got nan\)$"),
        (lambda: check_number("x", "1", above=0), r"^x must be > 0 \(got '1'\)$"),
    ],
)
def test_each_bound_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@given(st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), st.text(max_size=3)), st.integers(-3, 3), st.integers(-3, 3))
def test_a_value_comes_back_or_is_refused(value: Any, low: int, high: int) -> None:
    inside = type(value) in (int, float) and low <= value <= high
    for fits, check in (
        (inside and type(value) is int, lambda: check_whole("x", value, low, high)),
        (inside, lambda: check_number("x", value, least=low, most=high)),
        (inside and low < value < high, lambda: check_number("x", value, above=low, below=high)),
    ):
        if fits:
            assert check() is value
        else:
            with pytest.raises(ValueError, match=r"^x must be "):
                check()


def test_numbers_of_float32() -> None:
    assert torch.finfo(torch.float32).max == MOST_NUMBER
    assert is_whole(3, 1, 3) and not is_whole(4, 1, 3) and not is_whole(True, 0, 3) and not is_whole(1.0, 0, 3)
    assert is_number(1) and is_number(-1.5) and is_number(MOST_NUMBER)
    assert not any(map(is_number, (True, "1", None, math.nan, math.inf, -math.inf, 1e300, 10**400)))


def test_the_nearest_name_comes_first() -> None:
    assert suggest("plian", ["plain", "masked"]) == "did you mean 'plain'? allowed: masked, plain"
    assert suggest("x" * 10**5, []) == "allowed: nothing"
