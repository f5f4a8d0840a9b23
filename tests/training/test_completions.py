"""Rows as prompts and answers, prompts as a batch, samples as completions."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.data.build import build_data
from loopwright.generation.readings import left_padded
from loopwright.training.grpo import Prompts, cut

ROWS = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=1, max_size=4)


@settings(max_examples=30)
@given(ROWS)
def test_padding_stands_on_the_left_and_is_masked(rows):
    ids, mask = left_padded([torch.tensor(row) for row in rows], max(map(len, rows)), 9)
    assert [x[m.bool()].tolist() for x, m in zip(ids, mask, strict=True)] == rows
    assert bool((mask.diff(dim=1) >= 0).all()) and bool((ids[mask == 0] == 9).all())


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 5), min_size=5, max_size=5), min_size=1, max_size=4))
def test_a_completion_ends_with_its_first_end_token(rows):
    for row, found in zip(rows, cut(torch.tensor(rows), [4, 5]), strict=True):
        assert row[: len(found)] == found
        assert not {4, 5} & set(found[:-1])
        assert len(found) == 5 or found[-1] in (4, 5)


def test_prompt_and_answer_make_the_row():
    splits = build_data({"kind": "addition", "digits": 2, "train": 20, "valid": 4, "test": 4})
    prompts = Prompts(splits)
    for row in range(20):
        whole = splits.train.batch([row])
        real = whole.input_ids[0][whole.valid[0]].tolist()
        assert prompts.prompt(row) + prompts.answer(row) == real
        assert prompts.answer(row)[-1] == splits.eos_id
        a, b = prompts.text(prompts.prompt(row)).strip(" =").split("+")
        assert int(prompts.text(prompts.answer(row)).strip()[::-1]) == int(a) + int(b)
