"""Stories: grammatical, told apart by their choices, and read and written as people do."""

from __future__ import annotations

import re

import torch

from loopwright.data.build import build_data
from loopwright.data.tasks.stories import ALPHABET, SLOTS, WHO, Stories, story_tokenizer, tell

SPEC = {"kind": "stories", "train": 64, "valid": 16, "test": 32}


def test_a_story_says_again_what_it_said_first() -> None:
    splits = build_data(SPEC)
    assert not splits.exact and splits.vocab_size == len(ALPHABET) == 81
    for row in range(32):
        story = splits.tests["test"].show(row)
        name, colour, thing = re.search(r"named (\w+) \. (?:She|He) had a (\w+) (\w+) \.", story).groups()
        animal = re.search(r"met a (\w+) at", story)[1]
        assert f"{name} and the {animal} played with the {colour} {thing} all day . The end . §" in story
        assert f"little {WHO[name]['child']} named" in story
        for kind, said in {"name": name, "colour": colour, "thing": thing, "animal": animal}.items():
            assert {word for word in story.split() if word in SLOTS[kind]} == {said}


def test_no_story_is_in_two_splits_and_all_of_it_is_predicted() -> None:
    splits = build_data(SPEC)
    told = [[source.show(row) for row in range(len(source))] for source in (splits.train, splits.valid, splits.tests["test"])]
    assert len({story for stories in told for story in stories}) == 64 + 16 + 32
    batch = splits.train.batch([0, 1])
    assert torch.equal(batch.labels[batch.valid], batch.input_ids[batch.valid])


def test_the_same_seed_tells_the_same_stories() -> None:
    first, again, other = (build_data({**SPEC, "seed": seed}).train.show(0) for seed in (0, 0, 1))
    assert first == again != other


def test_the_tokenizer_reads_and_writes_as_people_do() -> None:
    words = story_tokenizer()
    story = tell({name: values[0] for name, values in SLOTS.items()}, 0)
    said = words.decode(words(story).input_ids)
    assert " ." not in said and said.startswith("Once upon a time there was a little girl named Anna. She had a blue ball. One day")
    assert words(said).input_ids == words(story).input_ids == ALPHABET.encode(story)
    assert (words.eos_token_id, words.pad_token_id) == (ALPHABET.eos_id, ALPHABET.pad_id)
    assert build_data(SPEC).tokenizer.get_vocab() == words.get_vocab()


def test_rows_are_as_wide_as_the_longest_story() -> None:
    task = Stories(train=8, valid=1, test=1)
    assert task.splits().train.ids.shape[1] == task.extent(1) == 64
