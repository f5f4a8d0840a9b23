"""A tokenizer, and what data needs to know of it: which ids mean what, and a fingerprint that changes where it does."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

from loopwright.confined import LimitError, check_tokenizer, no_panics
from loopwright.untrusted import check_file, first_line, shown, user_path

BYTES, SUFFIXES = 256 * 2**20, {".json", ".model", ".txt", ".jinja"}  # of one file, and how the files of a tokenizer end
HUB_SECONDS = 10  # how long the hub may take to say whether it has a tokenizer


class NoTokenizer(ValueError):  # noqa: N818  (it is what is wrong)
    """A model that was given as an object, without a folder, has no tokenizer."""


class Tokenizer:
    """transformers' tokenizer of a folder or hub id. `opening` are the ids that it puts before any text (a BOS, or nothing)."""

    def __init__(self, source: str | Path) -> None:
        self.own = load_tokenizer(source)
        if self.own.eos_token_id is None:
            raise ValueError(f"{source}: the tokenizer has no EOS token; allowed: one that ends documents and answers")
        self.source = str(source)
        self.eos_id: int = self.own.eos_token_id
        self.eos: str = self.own.eos_token
        self.pad_id: int = self.eos_id if self.own.pad_token_id is None else self.own.pad_token_id
        vocabulary = self.own.get_vocab()
        self.vocab_size = max(vocabulary.values()) + 1
        self.opening = [i for i in self.own("").input_ids if i == self.own.bos_token_id]
        decoder = json.loads(self.own.backend_tokenizer.to_str())["decoder"] if self.own.is_fast else None
        self._byte_level = "ByteLevel" in json.dumps(decoder)
        model = self.own.backend_tokenizer.to_str() if self.own.is_fast else json.dumps(vocabulary, sort_keys=True)
        self.fingerprint = hashlib.sha256(f"{model} {self.eos_id} {self.opening}".encode()).hexdigest()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of texts alone. A control word that stands in a text is text: it cannot end a document."""
        return self._told(texts, split_special_tokens=True).input_ids

    def encode_with_ends(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """Returns the ids of texts alone, each with the byte (of the text in UTF-8) at which its tokens end."""
        if not self.own.is_fast:
            raise ValueError(f"{self.source}: the tokenizer cannot say where its tokens end; allowed: one with a tokenizer.json")
        encoded = self._told(texts, split_special_tokens=True, return_offsets_mapping=True)
        ends = (self._byte_ends(*each) for each in zip(texts, encoded.input_ids, encoded.offset_mapping, strict=True))
        return list(zip(encoded.input_ids, ends, strict=True))

    def _byte_ends(self, text: str, ids: Sequence[int], spans: Sequence[tuple[int, int]]) -> list[int]:
        """The byte at which each token ends. Spans are in characters: where two tokens share one, the first ends inside it."""
        sizes = [0, *accumulate(len(character.encode()) for character in text)]
        ends = [sizes[end] for _, end in spans]
        for place in range(len(ids) - 2, -1, -1):
            if spans[place + 1][0] < spans[place][1]:
                ends[place] = ends[place + 1] - self._bytes(ids[place + 1])
        return ends

    def _bytes(self, token: int) -> int:
        """The bytes of a token that begins inside a character: <0xE2> is one, and a byte-level vocabulary has a letter for each."""
        written = self.own.convert_ids_to_tokens(token)
        if re.fullmatch("<0x[0-9A-F]{2}>", written):
            return 1
        return len(written) if self._byte_level else 0

    def encode_written(self, texts: Sequence[str], **options: bool) -> Any:
        """Returns what the tokenizer makes of texts that a chat template wrote: a control word in them is one token."""
        return self._told(texts, **options)

    def _told(self, texts: Sequence[str], **options: bool) -> Any:
        try:
            with no_panics():
                return self.own(list(texts), add_special_tokens=False, verbose=False, **options)
        except Exception as error:  # a small vocabulary, such as a task's symbols, has no word for everything
            reason = first_line(error)
            raise ValueError(
                f"{self.source}: a text has no tokens in this tokenizer ({reason}); give another text or tokenizer"
            ) from None

    def decode(self, ids: Any) -> str:
        """Returns the text of ids, control words included."""
        return self.own.decode(ids)


def load_tokenizer(source: str | Path, name: str | None = None) -> Any:
    """Returns transformers' tokenizer of a folder or hub id; `name` is what messages call it."""
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    place, name = user_path(source), name or f"tokenizer: {str(source)!r}"
    options = {} if place.is_dir() else _hub_options(source)
    for path in place.iterdir() if place.is_dir() else ():
        if path.suffix in SUFFIXES:
            check_file(path, BYTES)
    try:
        for file in _descriptions(place, source, options):
            check_tokenizer(file)
        with no_panics(), _said_once_read():
            words = AutoTokenizer.from_pretrained(place if place.is_dir() else str(source), trust_remote_code=False, **options)
    except LimitError as error:
        raise ValueError(f"{name}: the tokenizer is not taken: {error}; take another, or make this one anew") from None
    except Exception as error:  # the hub client and the parsers raise whatever they like
        reason = "it is not in the cache; the hub cannot be reached" if options else first_line(error)
        raise ValueError(f"{name}: the tokenizer cannot be read ({reason}); allowed: a folder or a hub id") from error
    if not isinstance(words, PreTrainedTokenizerBase):  # transformers has classes of that name that hold several
        raise ValueError(f"{name}: the tokenizer is a {type(words).__name__}; allowed: a class of one tokenizer")
    if not isinstance(words.model_max_length, int | float):  # transformers compares lengths with it
        raise ValueError(f"{name}: the tokenizer's model_max_length is {shown(words.model_max_length)}; allowed: a number")
    return words


@contextmanager
def _said_once_read() -> Iterator[None]:
    """Holds back what transformers has to say: where a tokenizer cannot be read, that is one line, and not one for each try."""
    logger, held = logging.getLogger("transformers"), MemoryHandler(sys.maxsize, flushLevel=sys.maxsize, flushOnClose=False)
    before, logger.handlers = logger.handlers, [held]
    try:
        yield
    except BaseException:
        held.buffer.clear()
        raise
    finally:
        logger.handlers = before
        for record in held.buffer:
            logger.handle(record)


def _descriptions(place: Path, source: str | Path, options: dict[str, Any]) -> list[Path]:
    """Returns the files that may say how texts are taken apart: tokenizer.json, and those for other versions of transformers."""
    from transformers.utils import cached_file

    if place.is_dir():
        return [path for path in sorted(place.glob("tokenizer*.json")) if path.name != "tokenizer_config.json"]
    file = cached_file(str(source), "tokenizer.json", _raise_exceptions_for_missing_entries=False, **options)
    return [] if file is None else [Path(file)]


def _hub_options(source: str | Path) -> dict[str, Any]:
    """Returns how to ask for a hub id: from the cache alone where the hub cannot be reached. What is not there is refused.

    One question decides: from_pretrained would ask for each of several files, each time trying again for half a minute.
    """
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    name = str(source)
    if isinstance(source, Path) or not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", name):
        raise ValueError(f"tokenizer: there is no folder {name!r}, and it is not a hub id (owner/name) either")
    try:
        huggingface_hub.model_info(name, timeout=HUB_SECONDS)
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        if status in (401, 403, 404):
            raise ValueError(
                f"tokenizer: there is no folder {name!r}, and the hub has none of that name (status {status})"
            ) from None
    except Exception:  # no network, no answer in time, or told to stay offline
        return {"local_files_only": True}
    return {}
