"""Tokenizers and templates that loop, explode or panic: each is one line, within its limits, and the next call is answered."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import loopwright as lw
from loopwright import confined
from loopwright.cli import main
from loopwright.confined import ConfinedTokenizer, LimitError, LocalTokenizer, check_tokenizer, token_ids
from tests.generation.tiny import byte_tokenizer, save_model, word_tokenizer
from tests.serving.live import live

ASKED = [{"role": "user", "content": "the cat"}]
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def inner(**parts: Any) -> Tokenizer:
    """A tokenizer of a few words with other parts."""
    words = Tokenizer(models.WordLevel({"?": 0, "a": 1, "<end>": 2}, unk_token="?"))
    for name, part in parts.items():
        setattr(words, name, part)
    return words


def save(folder: Path, **parts: Any) -> Path:
    """A tokenizer's folder."""
    PreTrainedTokenizerFast(tokenizer_object=inner(**parts), unk_token="?", eos_token="<end>").save_pretrained(folder)
    return folder


def grown(count: int, kind: Any = normalizers) -> Any:
    """A normaliser, or a decoder, that doubles a text so many times."""
    return kind.Sequence([kind.Replace("a", "aa")] * count)


PADDING = {
    "strategy": {"Fixed": 10**6}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "?",
}  # fmt: skip
EXPLODING = pre_tokenizers.Split(Regex(r"(a+)+$"), "isolated")


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined, "_SOUND", set())


@pytest.fixture(scope="module")
def apart() -> Iterator[ConfinedTokenizer]:
    words = ConfinedTokenizer(word_tokenizer(chat=True))
    yield words
    words.close()


@pytest.mark.long
def test_apart_is_here(apart: ConfinedTokenizer) -> None:
    here = LocalTokenizer(apart.tokenizer)
    for text in ("the cat sat", "", "a dog <end> ran", "x" * 999, "漢字 é"):
        assert apart.encode(text) == here.encode(text) and apart.encode(text, special=False) == here.encode(text, special=False)
    for opening in (True, False):
        assert apart.chat(ASKED, opening=opening) == here.chat(ASKED, opening=opening)
    letters = byte_tokenizer()
    with pytest.raises(ValueError, match="the model's chat template refuses them"):
        LocalTokenizer(letters).chat([{"role": "user", "content": "a"}])


@pytest.mark.long
def test_what_is_imported_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch for a GPU maps more memory than a tokenizer may take; here the limit is less than torch for a CPU."""
    child = tmp_path / "child.py"
    child.write_text("from loopwright import confined\nconfined.MEMORY = 2**27\nconfined.main()\n")
    popen = confined.subprocess.Popen
    monkeypatch.setattr(confined.subprocess, "Popen", lambda words, **given: popen([words[0], str(child)], **given))
    words = ConfinedTokenizer(word_tokenizer(chat=True))
    try:
        assert words.encode("the cat sat") == words.tokenizer("the cat sat")["input_ids"]
        assert words.chat(ASKED) == LocalTokenizer(words.tokenizer).chat(ASKED)
    finally:
        words.close()


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        pytest.param(
            {"pre_tokenizer": EXPLODING}, "the tokenizer's library gave up (Onig: Regex search error", marks=pytest.mark.long
        ),
        ({"decoder": grown(7, decoders)}, "its decoder makes a text 128 times as long; allowed: 64 times"),
        ({"decoder": decoders.Replace(Regex("(a+)+$"), "")}, "its decoder searches by a pattern (Regex); allowed: by a text"),
        ({"padding": PADDING}, "it makes 1,000,000 tokens of 11 characters"),
        pytest.param({"normalizer": grown(60)}, "it takes more than ", marks=pytest.mark.slow),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_folder_with_such_a_tokenizer_is_one_line(
    parts: dict[str, Any], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path, **{name: part for name, part in parts.items() if name != "padding"})
    if "padding" in parts:  # which transformers does not write
        file = folder / "tokenizer.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | parts))
    monkeypatch.setattr(confined, "BUILD_SECONDS", 3)
    with pytest.raises(ValueError, match="the tokenizer is not taken: ") as refused:
        lw.tokenizer(folder)
    assert reason in str(refused.value) and "\n" not in str(refused.value)


def test_a_file_is_checked_once_and_a_sound_one_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    start = confined._start
    monkeypatch.setattr(confined, "_start", lambda: (started.append(1), start())[1])
    for name in ("a", "b"):
        byte_tokenizer().save_pretrained(tmp_path / name)
        check_tokenizer(tmp_path / name / "tokenizer.json")
    assert len(started) == 1
    (tmp_path / "c.json").write_text("{")
    check_tokenizer(tmp_path / "c.json")  # who reads it says what is wrong


def test_a_panic_is_an_error_that_can_be_caught() -> None:
    words = PreTrainedTokenizerFast(tokenizer_object=inner(pre_tokenizer=EXPLODING), unk_token="?")
    with pytest.raises(LimitError, match="the tokenizer's library gave up"):
        token_ids(words, "a" * 40 + "b")
    assert token_ids(words, "b") == [0]


def test_a_text_that_grows_without_bound_is_stopped() -> None:
    words = byte_tokenizer()
    words.backend_tokenizer.normalizer = grown(14)
    with pytest.raises(LimitError, match="it makes 16,384 tokens of 1 characters"):
        LocalTokenizer(words).encode("a")
    words.chat_template = "a"
    with pytest.raises(LimitError, match="it makes 16,384 tokens of 1 characters"):
        LocalTokenizer(words).chat(ASKED)


def stopped(template: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is said of a template that is written in its own process, which answers the next call."""
    monkeypatch.setattr(confined, "CALL_SECONDS", 1)
    tokenizer = word_tokenizer()
    tokenizer.chat_template = "{% if messages[0].content == 'a' %}a{% else %}" + template + "{% endif %}"
    words = ConfinedTokenizer(tokenizer)
    try:
        with pytest.raises(LimitError) as refused:
            words.chat(ASKED)
        assert words.chat([{"role": "user", "content": "a"}]) == tokenizer("a")["input_ids"]
    finally:
        words.close()
    return str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "template",
    [
        LOOP,
        "{{ messages[0].role * 3000000000 }}",  # a constant would be made while the template is compiled, for every chat
        "{{ messages|tojson(indent=100000000) }}",
        "{{ messages[0].role|center(2000000000) }}",
        "{{ '%1000000000d' % messages|length }}",
        "{{ (messages[0].role * 9999)|replace('', messages[0].role * 99999) }}",
        "{% set x = namespace(s='a') %}{% for i in range(60) %}{% set x.s = x.s ~ x.s %}{% endfor %}{{ x.s|length }}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    ],
)
def test_a_template_is_stopped_and_the_next_chat_is_answered(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stopped(template, monkeypatch).startswith(("it takes more than ", "it writes "))


@pytest.mark.slow
def test_a_template_that_loops_holds_up_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined, "CALL_SECONDS", 2)
    tokenizer = word_tokenizer()
    tokenizer.chat_template = LOOP
    words = ConfinedTokenizer(tokenizer)
    ended: list[str] = []
    with live(words=words) as server:

        def ask() -> None:
            response = server.client.post("/v1/chat/completions", json={"messages": ASKED})
            ended.append("chat")
            assert response.status_code == 400 and "was stopped (it takes more than 2 s)" in response.json()["error"]["message"]

        thread = threading.Thread(target=ask)
        thread.start()
        for _ in range(5):
            assert server.ask(prompt=[2, 4])["usage"]["prompt_tokens"] == 2
        ended.append("others")
        thread.join()
        assert ended == ["others", "chat"] and server.ask()["usage"]["prompt_tokens"] == 3
    words.close()


@pytest.mark.slow
@pytest.mark.parametrize("words", [["serve"], ["chat"], ["generate", "the cat", "--chat"]])
def test_a_verb_ends_with_one_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(confined, "CALL_SECONDS", 1)
    folder = save_model(tmp_path / "m", chat=True)
    (folder / "chat_template.jinja").write_text(LOOP)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([words[0], str(folder), *words[1:]])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1
    assert "the tokenizer or its chat template is not taken: it takes more than 1 s" in said


def test_limits_of_the_shell_are_kept_and_ours_hold_below_them(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    hard, now = {resource.RLIMIT_CPU: 10**6, resource.RLIMIT_AS: 2**50}, {}

    def set_limit(kind: int, pair: tuple[int, int]) -> None:
        if not 0 <= pair[0] <= pair[1] <= hard[kind]:  # as the system tells who may not raise it
            raise ValueError("not allowed to raise maximum limit")
        now[kind] = pair

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (hard[kind], hard[kind]))
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    confined._limit(5)
    assert {kind: pair[1] for kind, pair in now.items()} == hard
    assert now[resource.RLIMIT_CPU][0] < 10**6 and now[resource.RLIMIT_AS][0] < 2**50
    hard.update({resource.RLIMIT_CPU: 1, resource.RLIMIT_AS: 2**20})  # less than is taken already
    confined._limit(5)
    assert now == {kind: (most, most) for kind, most in hard.items()}
