"""A conversation: what the model is given at each turn, the commands, and how an answer is stopped."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import loopwright as lw
from loopwright.cli import conversation as verb
from loopwright.cli.conversation import COMMANDS, chat
from loopwright.generation.engine import Engine
from loopwright.generation.request import Request
from tests.generation.tiny import STORIES, save_model, word_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def templated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), chat=True)


def alone(folder: Path, ids: list[int], depth: int | None, count: int) -> list[int]:
    """What the model generates greedily after these tokens, in a pass of its own."""
    model = lw.load(folder)
    given = torch.tensor([ids])
    whole = model.generate(given, max_new_tokens=count, do_sample=False, depth=depth, eos_token_id=1, pad_token_id=1)
    return whole[0, len(ids) :].tolist()


@pytest.mark.long
def test_a_text_goes_on_from_turn_to_turn(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat(str(folder), ["the cat sat", "/depth 2", "and then", ""], depth=3, max_new_tokens=5)
    printed, words = capsys.readouterr(), word_tokenizer()
    ids, expected = words("the cat sat")["input_ids"], []
    for line, depth in (("and then", 3), ("", 2), (None, 2)):
        answer = alone(folder, ids, depth, 5)
        expected.append(words.decode(answer, skip_special_tokens=True))
        ids = ids + [token for token in answer if token != 1] + (words(line)["input_ids"] if line else [])
    assert printed.out == "".join(f"{text}\n" for text in expected)
    lines = [line for line in printed.err.splitlines() if line.startswith("[")]
    assert ["depth 3" in lines[0], "depth 2" in lines[1], "depth 2" in lines[2]] == [True] * 3
    assert "after a prompt of 3" in lines[0] and "after a prompt of 15" in lines[2]


def test_turns_follow_the_template(templated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat(str(templated), ["the cat", "a dog", "/reset", "the cat", ""], max_new_tokens=4)
    printed, words = capsys.readouterr(), word_tokenizer(chat=True)
    answers = printed.out.splitlines()
    assert len(answers) == 3 and answers[0] == answers[2]  # after a reset as at first; an empty line asks for nothing
    turns = [
        {"role": "user", "content": "the cat"},
        {"role": "assistant", "content": answers[0]},
        {"role": "user", "content": "a dog"},
    ]
    ids = words.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert answers[1] == words.decode(alone(templated, ids, None, 4), skip_special_tokens=True)


def test_commands_and_mistakes_cost_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        "/help",
        "/dept 3",
        "/depth 0",
        "/depth two",
        "/temperature -1",
        "the cat",
        "/temperature 0.9",
        "the dog",
        "/quit",
        "more",
    ]
    chat(str(folder), lines, max_new_tokens=2, seed=1)
    printed = capsys.readouterr()
    said = printed.err.splitlines()
    assert said[: len("\n".join(COMMANDS.values()).splitlines())] == "\n".join(COMMANDS.values()).splitlines()
    mistakes = [line for line in said if line.startswith("loopwright: ")]
    assert len(mistakes) == 4 and "did you mean 'depth'" in mistakes[0] and "depth: 0" in mistakes[1]
    assert "/depth needs a number (got 'two'); such as /depth 8" in mistakes[2] and "temperature: -1" in mistakes[3]
    assert printed.out.count("\n") == 2  # nothing after /quit


def test_a_full_context_is_told_and_forgotten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat(str(folder), ["the cat sat and ran", "again", "/reset", "the cat"], max_new_tokens=9, context=7)
    said = capsys.readouterr().err
    assert "end of the model's context of 7 tokens" in said
    assert "loopwright: the conversation has 8 tokens and its context 7; /reset starts anew" in said and said.count("[") == 2
    for wrong in ({"context": 1}, {"context": 10**6}, {"max_new_tokens": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            chat(str(folder), ["the cat"], **wrong)


def test_the_steps_of_an_exit_rule_are_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat(str(folder), ["the cat sat"], depth=3, max_new_tokens=4, exit="stable:1")
    assert "; 1.00 steps a token]" in capsys.readouterr().err


def test_keys_of_earlier_turns_are_used_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines: list[Engine] = []

    class Watched(Engine):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            engines.append(self)

    monkeypatch.setattr(verb, "Engine", Watched)
    chat(str(folder), ["the cat sat and ran again", "until once more the dog"], max_new_tokens=4)
    assert len(engines) == 1 and engines[0].ran.prefill_tokens == 6 + 6  # five words, and the last token of the first answer


def test_an_interrupt_keeps_what_came(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plain = Request.__iter__

    def interrupted(self: Request) -> Any:
        for place, token in enumerate(plain(self)):
            if place == 2 and len(self.options.prompt) == 3:
                raise KeyboardInterrupt
            yield token

    monkeypatch.setattr(Request, "__iter__", interrupted)
    chat(str(folder), ["the cat sat", "again"], max_new_tokens=6)
    said = capsys.readouterr().err.splitlines()
    assert said[-2].startswith("[2 tokens, ") and said[-2].endswith("; stopped]") and "after a prompt of 6" in said[-1]


def test_a_terminal_is_asked_until_it_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter(["the cat"])

    def typed(prompt: str) -> str:
        assert prompt == "> "
        for line in lines:
            return line
        raise EOFError

    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", typed)
    chat(str(folder), max_new_tokens=2)
    printed = capsys.readouterr()
    assert printed.err.startswith("/help lists the commands") and printed.out.count("\n") == 1


def test_a_dense_model_talks_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if not STORIES.is_dir():
        pytest.skip("stories260K is not there")
    monkeypatch.setattr(sys, "stdin", io.StringIO("Once upon a time\r\n/depth 2\n"))
    chat(str(STORIES), max_new_tokens=12)
    printed = capsys.readouterr()
    assert "there was a little" in printed.out and ", dense, " in printed.err and "no core to loop" in printed.err


@pytest.mark.slow  # a process of its own
def test_ctrl_c_stops_one_answer_after_another(folder: Path) -> None:
    words = ["chat", str(folder), "--depth", "200", "--max-new-tokens", "120"]
    reset = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # ignored where tests run in the background
    command = [sys.executable, "-c", f"{reset}; from loopwright.cli import main; main({words!r})"]
    started = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert started.stdin is not None and started.stdout is not None and started.stderr is not None
    for _ in range(2):  # more than a second apart, as two wishes: each stops its own answer
        started.stdin.write("the cat sat\n")
        started.stdin.flush()
        assert started.stdout.read(1)
        time.sleep(1.1)
        started.send_signal(signal.SIGINT)
        while "; stopped]" not in (line := started.stderr.readline()):
            assert line
        started.stdout.readline()
    started.communicate("/quit\n", timeout=60)
    assert started.returncode == 0
