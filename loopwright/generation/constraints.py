"""Answers of a given form: a JSON schema, a regular expression, or one of several texts.

After each token a grammar says which tokens may follow; the logits of all others become −inf before anything else happens to them.
What is allowed is a function of the answer's tokens alone, so a constrained draw remains a pure function too. The grammars are
llguidance's: a wheel of 3 MB without dependencies, which parses while it goes and compiles nothing ahead.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from loopwright.schema import refuse_unknown
from loopwright.untrusted import check_plain, parse_json, read_text, shown, user_path

LONGEST = 100_000  # characters of a schema, a pattern or all choices
LEXER_STATES = 50_000  # of one answer, at one or two kilobytes each: a hostile pattern must not fill the memory
WHITESPACE = r" |\n {0,16}"  # inside JSON, where the schema says nothing: a weak model would fill the whole answer with it
LONGEST_REASON = 200  # characters of what the library says
END = "\x00end\x00"  # our own end token in the library's copy of a tokenizer: the model's may be several, or none


class ConstraintError(ValueError):
    """A grammar that cannot go on in the middle of an answer: the fault of who asked for it."""


def _json(value: Any) -> str:
    if not isinstance(value, Mapping | bool):
        raise ValueError(f"constrain.json: {shown(value)}; give a JSON schema as a mapping")
    check_plain(value, "constrain.json")
    if isinstance(value, Mapping) and "x-guidance" not in value:
        value = {**value, "x-guidance": {"whitespace_pattern": WHITESPACE}}
    return json.dumps({"grammars": [{"json_schema": value}]})


def _regex(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"constrain.regex: {shown(value)}; give a regular expression as text")
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_regex(value)


def _choice(value: Any) -> str:
    texts = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"constrain.choice: {shown(value)}; give a list of texts that are not empty")
    quoted = (json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f") for text in texts)  # which JSON leaves as it is
    return json.dumps({"grammars": [{"lark_grammar": "start: " + " | ".join(quoted)}]})


class ConstrainedVocabulary:
    """The tokens of a tokenizer as llguidance knows them; made once, since it takes a second for a large one."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
        if find_spec("llguidance") is None:
            raise ValueError("constrain: llguidance is not installed; pip install 'loopwright[constrain]'")
        from llguidance import LLTokenizer

        if not tokenizer.is_fast:
            raise ValueError("constrain: the tokenizer has no fast form, which llguidance needs; use one with a tokenizer.json")
        inner = copy.copy(tokenizer.backend_tokenizer)  # type: ignore[attr-defined]
        inner.no_padding()
        inner.no_truncation()
        inner.add_special_tokens([END])
        self.vocab_size, self.end = vocab_size, inner.token_to_id(END)
        try:
            self._tokens = LLTokenizer(inner.to_str(), eos_token=self.end)
        except ValueError as error:  # a tokenizer of whole words, as some tasks have
            raise ValueError(f"constrain: llguidance cannot spell this tokenizer's tokens ({_reason(str(error))})") from None

    def constraint(self, spec: Any, ends: Collection[int] = ()) -> Constraint:
        """Returns what a mapping of one kind asks for, checked; `ends` are the tokens by which the model ends an answer.

        It is compiled for each answer anew: copies of a matcher share the states of one lexer, so an answer would use up those of
        another.
        """
        kind, value = checked_kind(spec)
        grammar = GRAMMARS[kind](value)
        if len(grammar) > LONGEST:
            raise ValueError(f"constrain.{kind}: {len(grammar):,} characters; allowed: at most {LONGEST:,}")
        known = frozenset(token for token in ends if 0 <= token < self.vocab_size)  # of a tokenizer with more tokens
        constraint = Constraint(partial(self._compile, kind, grammar), self.vocab_size, self.end, known)
        start = constraint.begin()
        if start.error is not None:
            raise ValueError(f"constrain.{kind}: {start.error}")
        if start.ended:
            raise ValueError(f"constrain.{kind}: {shown(value)} allows nothing but an empty answer")
        constraint.ready.append(start)
        return constraint

    def _compile(self, kind: str, grammar: str) -> Any:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(max_lexer_states=LEXER_STATES, verbose_errors=False)
        matcher = LLMatcher(self._tokens, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise ValueError(f"constrain.{kind}: {_reason(matcher.get_error())}")
        return matcher


class Constraint:
    """One checked grammar over the tokens of one model. `ready` is the state of the check, which the first answer takes."""

    def __init__(self, matcher: Callable[[], Any], vocab_size: int, end: int, ends: frozenset[int]) -> None:
        self.matcher, self.vocab_size, self.end, self.ends = matcher, vocab_size, end, ends
        self.ready: list[GrammarState] = []

    def begin(self) -> GrammarState:
        """Returns the grammar before an answer's first token; it shares nothing with that of another answer."""
        return self.ready.pop() if self.ready else GrammarState(self)


class GrammarState:
    """A grammar after some tokens of an answer.

    `allowed` says which tokens [V] may follow, None once the answer has `ended`: by an end token, or because nothing but one could
    follow. What is drawn after that belongs to nobody. `error` is why the library gave up.
    """

    def __init__(self, constraint: Constraint) -> None:
        self._constraint, self._matcher = constraint, constraint.matcher()
        self.taken, self.ended = 0, False
        self.allowed: Tensor | None = None
        self.error: str | None = None
        self._look()

    def take(self, tokens: Iterable[int]) -> None:
        """Goes on by tokens of the answer; those behind its end are left out."""
        for token in tokens:
            if self.ended:
                return
            self.taken += 1
            if token in self._constraint.ends:
                self.ended, self.allowed = True, None
            else:
                self._matcher.consume_token(token)
                self._look()

    def after(self, tokens: Iterable[int]) -> GrammarState:
        """Returns the grammar after further tokens, leaving this one as it is."""
        later = copy.copy(self)
        later._matcher = self._matcher.deep_copy()
        later.take(tokens)
        return later

    def _look(self) -> None:
        known, end = self._constraint.vocab_size, self._constraint.end
        bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = torch.zeros(known, dtype=torch.bool)
        held = torch.from_numpy(bits[: min(known, end)])
        allowed[: len(held)] = held.bool()
        allowed[list(self._constraint.ends)] = False
        complete, more = bool(bits[end]), bool(allowed.any())
        failed = self._matcher.is_error()
        if failed or not (more or complete):
            reason = _reason(self._matcher.get_error()) if failed else "the model knows no token that may follow"
            self.error = f"no way on after {self.taken} tokens of the answer ({reason})"
        self.ended = self.error is not None or not more
        if complete:
            allowed[list(self._constraint.ends)] = True
        self.allowed = None if self.ended else allowed


def checked_kind(spec: Any) -> tuple[str, Any]:
    """Returns kind and value of a constraint, given as a mapping of one of them."""
    if not isinstance(spec, Mapping) or len(spec) != 1:
        raise ValueError(f"constrain: {shown(spec)}; give one of {', '.join(GRAMMARS)}, such as {{'regex': '[0-9]+'}}")
    refuse_unknown("constrain", spec, GRAMMARS)
    ((kind, value),) = spec.items()
    return kind, value


def parse_constraint(word: str) -> dict[str, Any]:
    """Returns the mapping of a constraint as the command line writes it: `regex:PATTERN`, `choice:A,B` or `json:FILE`."""
    kind, colon, value = word.partition(":")
    if not colon or kind not in GRAMMARS:
        raise ValueError(f"constrain: {word!r}; write regex:PATTERN, choice:A,B or json:FILE (a schema)")
    if kind == "choice":
        return {kind: value.split(",")}
    if kind == "json":
        path: Path = user_path(value)
        if not path.is_file():
            raise FileNotFoundError(f"constrain: {path}: there is no such file; give a file with a JSON schema")
        return {kind: parse_json(read_text(path, LONGEST), str(path), "give a file with a JSON schema")}
    return {kind: value}


def _reason(said: str) -> str:
    """Returns the line that matters of what the library says."""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["no reason given"]
    return next((line.removeprefix("error:").strip() for line in lines if line.startswith("error:")), lines[0])[:LONGEST_REASON]


# the kinds, by the names that vLLM's `structured_outputs` gives them; each makes a grammar of llguidance
GRAMMARS: dict[str, Callable[[Any], str]] = {"json": _json, "regex": _regex, "choice": _choice}
