"""What `generate` prints."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import loopwright as lw
from loopwright.cli.continuation import generate
from loopwright.cli.conversation import chat
from loopwright.generation.readings import next_token_by_depth
from loopwright.generation.sampling import Sampling
from loopwright.training.loop import train
from tests.generation.test_generation_config import drawing_by
from tests.generation.tiny import STORIES, letter_tokenizer, save_model, word_tokenizer
from tests.training.runs import small


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), chat=True)


def test_generate_streams_and_counts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generate(str(folder), "the cat sat", depth=2, max_new_tokens=6)
    printed = capsys.readouterr()
    model, words = lw.LoopedForCausalLM.from_pretrained(folder), word_tokenizer()
    ids = words("the cat sat", return_tensors="pt")["input_ids"]
    expected = model.generate(ids, max_new_tokens=6, depth=2, do_sample=False, eos_token_id=1, pad_token_id=1)
    assert printed.out == words.decode(expected[0, 3:], skip_special_tokens=True) + "\n"
    assert printed.err.startswith(f"[{expected.shape[1] - 3} tokens, ") and "depth 2" in printed.err


@pytest.mark.long
def test_generate_with_a_chat_template_and_seeds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for seed in (1, 1, 2):
        sampling = Sampling(temperature=1.0)
        generate(str(folder), "the cat", max_new_tokens=8, sampling=sampling, seed=0, state_seed=seed, chat=True)
        printed = capsys.readouterr()
        assert "after a prompt of 4" in printed.err  # two words, and the template's two
        texts.append(printed.out)
    assert texts[0] == texts[1] != texts[2]


def test_generate_follows_the_generation_config(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = Path(shutil.copytree(folder, tmp_path / "model"))
    told = {
        "do_sample": True,
        "temperature": 2.0,
        "top_k": 9,
        "repetition_penalty": 1.3,
        "max_new_tokens": 5,
        "eos_token_id": [1, 9],
    }
    (copied / "generation_config.json").write_text(json.dumps(told))
    model, words = lw.load(copied), word_tokenizer()
    ids = words("the cat sat", return_tensors="pt")["input_ids"]
    with drawing_by(3):
        made = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=1)
    expected = words.decode(made[0, 3:], skip_special_tokens=True) + "\n"
    for options in ({}, {"draft_depth": 1}):
        generate(str(copied), "the cat sat", seed=3, **options)
        assert capsys.readouterr().out == expected
    generate(str(copied), "the cat sat", max_new_tokens=2, sampling=Sampling(temperature=0))
    greedy = model.generate(ids, max_new_tokens=2, do_sample=False, pad_token_id=1)
    assert capsys.readouterr().out == words.decode(greedy[0, 3:], skip_special_tokens=True) + "\n"
    with pytest.raises(ValueError, match="seed: 3 would change nothing"):
        generate(str(copied), "the cat sat", sampling=Sampling(temperature=0), seed=3)
    chat(str(copied), ["the cat sat"], seed=3)
    assert f"[{made.shape[1] - 3} tokens" in capsys.readouterr().err


def test_show_depth_prints_each_step(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generate(str(folder), "the cat", depth=3, max_new_tokens=0, show_depth=True)
    printed = capsys.readouterr().out
    model, words = lw.LoopedForCausalLM.from_pretrained(folder).eval(), word_tokenizer()
    for guess in next_token_by_depth(model, words("the cat", return_tensors="pt")["input_ids"], 3):
        line = next(line for line in printed.splitlines() if line.startswith(f"│    {guess.step} │"))
        assert f"{words.decode([guess.tokens[0]])!r} {guess.probabilities[0]:.3f}" in line
        assert f"{guess.entropy:.3f}" in line and f"{guess.divergence:.3f}" in line


def test_generate_on_a_dense_model(capsys: pytest.CaptureFixture[str]) -> None:
    if not STORIES.is_dir():
        pytest.skip("stories260K is not there")
    generate(str(STORIES), "Once upon a time", max_new_tokens=12)
    assert "there was a little" in capsys.readouterr().out
    with pytest.raises(ValueError, match="dense model"):
        generate(str(STORIES), "Once upon a time", depth=2)


@pytest.mark.long
def test_a_trained_task_is_asked_in_its_own_symbols(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = train(small({"updates": 2, "save": {"every": 1, "best": False}}), tmp_path / "run")
    for source in (outcome.folder.path, outcome.checkpoint, outcome.folder.checkpoints / "00000001"):
        generate(str(source), "12+34=", max_new_tokens=3)
        printed = capsys.readouterr()
        words = lw.tokenizer(source)
        ids = words("12+34=", return_tensors="pt").input_ids
        expected = lw.load(source).generate(
            ids, max_new_tokens=3, do_sample=False, eos_token_id=words.eos_token_id, pad_token_id=13
        )
        assert printed.out == words.decode(expected[0, 6:], skip_special_tokens=True) + "\n"
        assert printed.err.endswith("[the sum is written from its last digit on: 12+34= 64 says that the sum is 46]\n")
    with pytest.raises(ValueError, match=r"prompt: '12-34=' has no tokens in this tokenizer .*; allowed: '0' '1' .* '§'$"):
        generate(str(outcome.folder.path), "12-34=")


def test_a_model_without_a_tokenizer_is_given_one(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lw.save(lw.load(folder), tmp_path / "bare")
    with pytest.raises(FileNotFoundError, match=r"bare: there is no tokenizer .*; --tokenizer names one$"):
        generate(str(tmp_path / "bare"), "the cat sat")
    generate(str(tmp_path / "bare"), "the cat sat", max_new_tokens=6, tokenizer=str(folder))
    given = capsys.readouterr().out
    generate(str(folder), "the cat sat", max_new_tokens=6)
    assert given == capsys.readouterr().out


def test_a_constrained_answer(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llguidance")
    spelled = save_model(tmp_path, prelude_layers=1, core_layers=1, coda_layers=1)
    letter_tokenizer().save_pretrained(spelled)
    texts = []
    for options in ({}, {"draft_depth": 1}, {"exit": "never"}):
        generate(str(spelled), "a", depth=2, constrain="regex:[x-z]{4}", **options)  # type: ignore[arg-type]
        texts.append(capsys.readouterr().out)
    assert re.fullmatch("[x-z]{4}\n", texts[0]) and len(set(texts)) == 1
    with pytest.raises(ValueError, match=r"^constrain\.regex: unclosed"):
        generate(str(spelled), "a", constrain="regex:[")
    with pytest.raises(ValueError, match="cannot spell this tokenizer"):
        generate(str(folder), "the", constrain="regex:a")


def test_generate_with_exits_and_drafts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generate(str(folder), "the cat sat", depth=3, max_new_tokens=6, dtype="float32")
    plain = capsys.readouterr().out
    generate(str(folder), "the cat sat", depth=3, max_new_tokens=6, draft_depth=1)
    drafted = capsys.readouterr()
    assert drafted.out == plain and "[drafts at depth 1: " in drafted.err
    generate(str(folder), "the cat sat", depth=3, max_new_tokens=6, exit="never")
    left = capsys.readouterr()
    assert left.out == plain and "[exit by never: 3.00 of 3 steps a token on average]" in left.err
    generate(str(folder), "the cat sat", depth=3, max_new_tokens=6, exit="stable:1")
    assert "[exit by stable: 1.00 of 3 steps" in capsys.readouterr().err
    with pytest.raises(ValueError, match="exit: 'x' is not a number"):
        generate(str(folder), "the cat sat", exit="change:x")
    with pytest.raises(ValueError, match="exit: 'never' takes no number"):
        generate(str(folder), "the cat sat", exit="never:3")
