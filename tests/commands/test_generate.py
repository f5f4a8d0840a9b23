"""What `generate` prints."""

from __future__ import annotations

from pathlib import Path

import pytest

import loopwright as lw
from loopwright.commands.generate import generate
from loopwright.generate.depths import next_token_by_depth
from loopwright.generate.stream import Sampling
from tests.generate.tiny import STORIES, save_model, word_tokenizer


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


def test_generate_with_a_chat_template_and_seeds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for seed in (1, 1, 2):
        sampling = Sampling(temperature=1.0)
        generate(str(folder), "the cat", max_new_tokens=8, sampling=sampling, seed=0, state_seed=seed, chat=True)
        printed = capsys.readouterr()
        assert "after a prompt of 4" in printed.err  # two words, and the template's two
        texts.append(printed.out)
    assert texts[0] == texts[1] != texts[2]


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
