"""Tokenizers in a process with limits: their files, and the templates of chats, are data that may loop, explode or panic.

`python -m loopwright.confined` is that process: it reads one JSON request per line and answers each with a line.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loopwright.untrusted import first_line

GIB = 2**30
MEMORY = 2 * GIB  # that the process may take beside what it has when it begins
BUILD_SECONDS, CALL_SECONDS = 30, 5  # of processor time: for a file, for a text or a chat
WALL = 20  # times as long by the clock, whatever the machine does meanwhile
STOPPED = (-24, -9)  # how a process ends that took too long: SIGXCPU, or SIGKILL of the clock
TEXT = 2**22  # characters that a template may write
GROWTH, FREE = 64, 4096  # tokens and characters that one character may become, and how many are free
SHOWN_WORDS, REASON = 40, 200  # words of a small vocabulary, characters of what was raised, in a message
# on which patterns of a tokenizer that try every split of a text do so
PROBES = (
    "the cat sat", "a" * 40 + "b", "1" * 40 + "!", " " * 40 + "x", "ab" * 20 + "c", "\n" * 40 + "a", "é漢😀" * 8, "a, b. c'd " * 4,
)  # fmt: skip
NAMES = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


class LimitError(ValueError):
    """What a tokenizer or a template does takes more than it may."""


@contextlib.contextmanager
def no_panics() -> Iterator[None]:
    """Makes an error of what the library of tokenizers calls a panic: it is no `Exception`, and nobody would catch it."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise LimitError(f"the tokenizer's library gave up ({first_line(error)[:REASON]})") from None


def token_ids(tokenizer: Any, prompt: str, *, special: bool = True) -> list[int]:
    """Returns the ids of a prompt; what is no word of a small vocabulary, such as a task's symbols, is refused with the words.

    `special=False` leaves out the tokens that open or close a text: for a line in the middle of one.
    """
    try:
        with no_panics():
            return tokenizer(prompt, verbose=False, add_special_tokens=special)["input_ids"]
    except LimitError:
        raise
    except Exception as error:  # the tokenizers package raises plain Exceptions
        words = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])
        known = " ".join(repr(word) for word, _ in words[:SHOWN_WORDS]) + (" …" if len(words) > SHOWN_WORDS else "")
        raise ValueError(
            f"prompt: {prompt[:80]!r} has no tokens in this tokenizer ({first_line(error)}); allowed: {known}"
        ) from None


def _bounded(ids: list[int], text: str) -> list[int]:
    if len(ids) > FREE + GROWTH * len(text):
        raise LimitError(f"it makes {len(ids):,} tokens of {len(text):,} characters")
    return ids


class LocalTokenizer:
    """What a tokenizer makes of texts and of messages, in this process."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Returns the token ids of a text."""
        return _bounded(token_ids(self.tokenizer, text, special=special), text)

    def chat(self, messages: list[dict[str, str]], *, opening: bool = True) -> list[int]:
        """Returns the ids of a conversation with, or without, the opening of the answer, by the tokenizer's own template."""
        try:
            with no_panics():
                text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=opening, tokenize=False)
                if len(text) > max(TEXT, GROWTH * sum(len(message["content"]) for message in messages)):
                    raise LimitError(f"it writes {len(text):,} characters")
                return _bounded(list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]), text)
        except (LimitError, MemoryError):
            raise
        except Exception as error:  # a template is a program of the folder: it raises what it likes
            reason = f"{type(error).__name__}: {first_line(error)}"[:REASON]
            raise ValueError(f"messages: the model's chat template refuses them ({reason})") from None


class ConfinedTokenizer(LocalTokenizer):
    """The same in a process of its own, begun anew where it was ended for what it took."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self._child, self._kept = Child(), base64.b64encode(pickle.dumps(tokenizer)).decode()

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Returns the token ids of a text."""
        return self._ask("encode", text=text, special=special)

    def chat(self, messages: list[dict[str, str]], *, opening: bool = True) -> list[int]:
        """Returns the ids of a conversation; raises a LimitError where the template, or its text, takes more than it may."""
        return self._ask("chat", messages=messages, opening=opening)

    def probe(self) -> None:
        """Raises a LimitError where the tokenizer or its template takes too much whatever it is given."""
        digest = hashlib.sha256(self._kept.encode()).hexdigest()
        if digest in _SOUND:
            return
        asked = [lambda: self.encode("a")]
        if self.tokenizer.chat_template is not None:
            asked.append(lambda: self.chat([{"role": "user", "content": "a"}]))
        for ask in asked:
            try:
                ask()
            except LimitError:
                raise
            except ValueError:  # what a template, or a small vocabulary, refuses is another matter
                pass
        _SOUND.add(digest)

    def close(self) -> None:
        """Ends the process."""
        self._child.end()

    def _ask(self, act: str, **given: Any) -> Any:
        return self._child.ask(act, CALL_SECONDS, first=("keep", {"pickled": self._kept}), **given)


def check_tokenizer(file: Path) -> None:
    """Raises a LimitError where a tokenizer.json cannot be built, or explodes on a short text, within the limits of a process.

    A decoder is checked by what it says: it runs for each token of an answer, beside all others.
    """
    content = file.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest in _SOUND:
        return
    try:
        _check_decoder(json.loads(content).get("decoder"))
    except LimitError:
        raise
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):  # who reads it says that it is no tokenizer
        return
    child = Child()
    try:
        child.ask("build", BUILD_SECONDS, file=str(file.resolve()))
    except LimitError:
        raise
    except ValueError:  # no word for a probe, or no tokenizer: who reads it says so
        pass
    finally:
        child.end()
    _SOUND.add(digest)


_SOUND: set[str] = set()  # digests of what was checked in this process


class Child:
    """The process. It is started by the first request, and by the first after one that took more than it may."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def ask(self, act: str, seconds: int, *, first: tuple[str, dict[str, Any]] | None = None, **given: Any) -> Any:
        """Returns what the process makes of a request; `first` is what a process that has just begun is asked before."""
        with self._lock:
            if self._process is None:
                self._process = _start()
                if first is not None:
                    self._answer(self._process, first[0], BUILD_SECONDS, first[1])
            return self._answer(self._process, act, seconds, given)

    def _answer(self, process: subprocess.Popen[bytes], act: str, seconds: int, given: dict[str, Any]) -> Any:
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(WALL * seconds, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps([act, seconds, given]).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        finally:
            timer.cancel()
        if not line.endswith(b"\n"):
            code = process.wait()
            self._end()
            took = f"{seconds} s" if code in STOPPED else f"a process may (it ended with {code})"
            raise LimitError(f"it takes more than {took}")
        kind, said = json.loads(line)
        if kind == "limit":
            self._end()  # what it holds is not given back at once
            raise LimitError(said)
        if kind == "error":
            raise ValueError(said)
        return said

    def end(self) -> None:
        """Ends the process, whatever it does."""
        process = self._process
        if process is not None:
            process.kill()  # whoever waits for it goes on, and gives the lock back
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _start() -> subprocess.Popen[bytes]:
    # -P: no module is taken from the folder that somebody happens to stand in
    places = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "loopwright.confined"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=os.environ | NAMES | {"PYTHONPATH": os.pathsep.join(places)},
    )  # fmt: skip


def _check_decoder(decoder: Any) -> None:
    """Raises a LimitError where a decoder searches by a pattern, or lets a text grow without bound."""
    grows, todo = 1.0, [decoder]
    while todo:
        one = todo.pop()
        if not isinstance(one, dict):
            continue
        todo += one.get("decoders") or []
        pattern = one.get("pattern") if one.get("type") == "Replace" else None
        if isinstance(pattern, dict) and "Regex" in pattern:
            raise LimitError("its decoder searches by a pattern (Regex); allowed: by a text")
        if isinstance(pattern, dict):
            grows *= max(1.0, len(one["content"]) / max(len(pattern["String"]), 1))
    if grows > GROWTH:
        raise LimitError(f"its decoder makes a text {grows:.3g} times as long; allowed: {GROWTH} times")


# the process


class Confined:
    """What the process does with what it is asked."""

    words: LocalTokenizer

    def build(self, file: str) -> None:
        """Builds a tokenizer and lets it read short texts."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(file)
        for text in PROBES:
            tokenizer.decode(_bounded(tokenizer.encode(text).ids, text))

    def keep(self, pickled: str) -> None:
        """Takes the tokenizer that later requests are about."""
        self.words = LocalTokenizer(pickle.loads(base64.b64decode(pickled)))  # from the process that built it

    def encode(self, **given: Any) -> list[int]:
        """Returns the ids of a text."""
        return self.words.encode(given.pop("text"), **given)

    def chat(self, **given: Any) -> list[int]:
        """Returns the ids of a conversation."""
        return self.words.chat(given.pop("messages"), **given)


def main() -> None:
    """Answers requests, each within its seconds of processor time, until there are no more."""
    confined, answers = Confined(), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else writes there
    for line in sys.stdin.buffer:
        act, seconds, given = json.loads(line)
        if act == "keep":
            _import()
        _limit(seconds)
        try:
            with no_panics():
                answer = ["said", getattr(confined, act)(**given)]
        except LimitError as error:
            answer = ["limit", str(error)]
        except MemoryError:
            answer = ["limit", f"it takes more than {MEMORY // GIB} GiB of memory"]
        except Exception as error:
            answer = ["error", first_line(error)]
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _import() -> None:
    """Imports what a tokenizer and its template need: of torch for a GPU that alone is more memory than they may take."""
    import torch  # noqa: F401
    from transformers.utils.chat_template_utils import render_jinja_template

    render_jinja_template([[{"role": "user", "content": "a"}]], chat_template="a")


def _limit(seconds: int) -> None:
    """Allows so many more seconds of processor time and so much more memory than was taken so far."""
    try:
        import resource
    except ModuleNotFoundError:  # not on Windows: there the clock alone ends it
        return

    def allow(kind: int, most: int) -> None:
        hard = resource.getrlimit(kind)[1]  # of the shell or the cluster, which may not be raised
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))

    taken = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    allow(resource.RLIMIT_CPU, int(taken) + seconds + 1)
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        allow(resource.RLIMIT_AS, pages * resource.getpagesize() + MEMORY)


if __name__ == "__main__":
    main()
