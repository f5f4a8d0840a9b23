"""Rewards: the built-in ones, functions and classes of the user's own, and what a reward may not do."""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.parts import Reward, Sample
from loopwright.registry import register
from loopwright.schema import build_kind, check_kind
from loopwright.training.grpo import REWARDS, Exact, Number, final_number, judge
from tests.own_kinds import own_kinds

WORDS = st.text(alphabet="ab1 \n", max_size=4)


@settings(max_examples=40)
@given(WORDS, WORDS, st.booleans())
def test_exact_is_the_answer_itself_and_ended(completion, answer, ended):
    value = Exact()(Sample("", completion, answer, ended))
    assert value == float(ended and completion.strip() == answer.strip())
    assert Exact()(Sample("", f" {answer}\n", answer, True)) == 1


@settings(max_examples=40)
@given(st.integers(-(10**9), 10**9), st.text(alphabet="abc .$\n", max_size=12))
def test_a_final_number_is_found_in_every_spelling(number, words):
    for text in (f"{words}{number}", f"{words}{number:,}{words}", f"7 and 8 #### {number} {words}", f"{words} {number}.00"):
        assert final_number(text) == Decimal(number), text


def test_numbers_as_gsm8k_has_them():
    answer = "He has 16 - 3 = <<16-3=13>>13 eggs.\n#### 1,018"
    assert final_number(answer) == 1018
    for completion, value in {"so 1018.0": 1, "#### 1018 and 7": 1, "1018 and then 7": 0.25, "no idea": 0, "": 0}.items():
        assert Number(near=0.25)(Sample("", completion, answer)) == value, completion


def test_functions_and_classes_of_the_users_own():
    with own_kinds():

        @register("reward", "short")
        def short(sample):
            return 1 / (1 + len(sample.completion))

        @register("reward", "holds")
        class Holds(Reward):
            def __init__(self, word: str = "x") -> None:
                self.word = word

            def __call__(self, sample: Sample) -> float:
                return float(self.word in sample.completion)

        assert short(Sample("", "abc", "")) == 0.25  # the decorator gives the function back
        spec = {"kind": "holds", "word": "b"}
        check_kind("reward", spec, REWARDS)
        assert judge("holds", build_kind(spec, REWARDS), [Sample("", "abc", ""), Sample("", "xyz", "")]) == [1, 0]
        assert judge("short", REWARDS["short"](), [Sample("", "abc", "")]) == [0.25]
        with pytest.raises(ValueError, match="one of loopwright's own"):
            register("reward", "exact")(short)


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        (lambda s: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda s: float("nan"), "gave nan; a reward must be finite"),
        (lambda s: float("inf"), "gave inf"),
        (lambda s: 10**400, "gave 1000"),
        (lambda s: -(10**5000), "gave a whole number of 16610 bits; a reward must be finite"),
        (lambda s: None, "gave None; a reward must be a number"),
        (lambda s: "good\nbad", "a reward must be a number"),
    ],
)
def test_a_reward_that_fails_is_one_line(gives, message):
    with pytest.raises(ValueError) as error:
        judge("mine", gives, [Sample("1+1=\n", "3", "2")])
    assert message in str(error.value) and str(error.value).startswith("reward (mine), prompt '1+1=\\n', completion '3':")
    assert "\n" not in str(error.value)


def test_an_unknown_reward_names_the_nearest():
    with pytest.raises(ValueError, match="unknown kind 'exakt'; did you mean 'exact'"):
        check_kind("objective (grpo): reward", {"kind": "exakt"}, REWARDS)
