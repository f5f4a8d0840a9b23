"""Token shards: text tokenised once, kept as memory-mapped arrays beside an index, and cut into windows.

A folder of shards is written under a temporary name and renamed when it is whole. Its name holds a digest of what it was made
from (format, source, options, tokenizer): what fits is used again, anything else is made anew, and sets lie side by side.
Its manifest holds the sha256 of every file. Opening a folder reads every byte and compares, so that nothing trains on damaged
tokens: about a second per GB (half a billion tokens of 2 bytes) for each process, and the files are then in the page cache.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loopwright.data.batch import IGNORED, Batch
from loopwright.storage.files import DiskFull, read_json, write_json
from loopwright.storage.folder import clear_leftovers, whole_folder
from loopwright.storage.manifest import Manifest, verify

FORMAT = 3
INDEX = "index.json"
ORIGINS = ("source", "tokenizer", "template")  # of what a set was made from, what a recipe only names
SHARD_TOKENS = 1 << 24
Document = tuple[Sequence[int], Sequence[bool] | None]  # ids, and which of them are answers, where that is asked


class Shards:
    """The documents of a folder of shards, end to end; document i is tokens starts[i] … starts[i + 1] − 1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        problems = verify(folder)
        if problems:
            raise ValueError(f"{problems[0]}; delete {folder} to have it made anew")
        index = read_json(folder / INDEX)
        self.about, self.notes = index["about"], index["notes"]
        self.starts = np.load(folder / "starts.npy", mmap_mode="r", allow_pickle=False)
        self._tokens, self._answers = (
            [np.load(path, mmap_mode="r", allow_pickle=False) for path in sorted(folder.glob(f"{kind}-*.npy"))]
            for kind in ("tokens", "answers")
        )
        self.digests = np.load(folder / "digests.npy", mmap_mode="r", allow_pickle=False)
        self._firsts = [0, *accumulate(len(shard) for shard in self._tokens)]

    @property
    def documents(self) -> int:
        """The number of documents."""
        return len(self.starts) - 1

    @property
    def tokens(self) -> int:
        """The number of tokens of all documents."""
        return self._firsts[-1]

    def made_of(self) -> dict[str, str]:
        """Returns digests of the tokens, and of what they were made of."""
        manifest = Manifest.of(self.folder)
        assert manifest is not None  # or it would not have been opened
        tokens = {name: entry for name, entry in manifest.entries.items() if name != INDEX}
        origins = {name: self.about[name] for name in ORIGINS if name in self.about}
        facts = {**origins, "rows": tokens}
        return {name: hashlib.sha256(json.dumps(x, sort_keys=True).encode()).hexdigest()[:12] for name, x in facts.items()}

    def shared_with(self, other: Shards) -> int:
        """Returns how many of these documents are also in the other shards, token for token."""
        return int(np.isin(self.digests, other.digests).sum())

    def read(self, start: int, stop: int) -> np.ndarray:
        """Returns tokens start … stop − 1 of the documents laid end to end."""
        return self._slice(self._tokens, start, stop).astype(np.int64)

    def answers(self, start: int, stop: int) -> np.ndarray:
        """Returns which of those tokens are answers."""
        return self._slice(self._answers, start, stop).astype(bool)

    def _slice(self, shards: Sequence[np.ndarray], start: int, stop: int) -> np.ndarray:
        shard = bisect_right(self._firsts, start) - 1
        parts = []
        while start < stop:
            first, end = self._firsts[shard], min(stop, self._firsts[shard + 1])
            parts.append(shards[shard][start - first : end - first])
            start, shard = end, shard + 1
        return np.concatenate(parts) if len(parts) != 1 else parts[0]


class Windows:
    """The documents of shards, end to end, cut into windows of `length` tokens; the last, shorter one is dropped.

    A window begins with the last token of the one before it, so that none but the very first lacks its context as a label.
    Documents inside a window have `segment_ids` of their own, and the first token of a
    document is never a label: nothing before it says what it is. Unless they are kept `apart`, a window is one text: each
    document sees those before it, and its first token follows their end.
    """

    def __init__(self, shards: Shards, length: int, decode: Callable[[Any], str], *, apart: bool = True) -> None:
        if shards.tokens < length:
            raise ValueError(f"{shards.folder}: {shards.tokens:,} tokens; allowed: at least one window of {length:,}")
        self.shards, self.length, self._decode, self.apart = shards, length, decode, apart

    def __len__(self) -> int:
        return (self.shards.tokens - 1) // (self.length - 1)

    def batch(self, indices: Sequence[int] | Tensor) -> Batch:
        """Returns the windows of these indices."""
        ids, begins = (np.zeros((len(indices), self.length), dtype=np.int64) for _ in range(2))
        starts = self.shards.starts
        for row, index in enumerate(indices):
            first = self._first(int(index))
            ids[row] = self.shards.read(first, first + self.length)
            if not self.apart:
                continue
            inner = starts[np.searchsorted(starts, first, "right") : np.searchsorted(starts, first + self.length)]
            begins[row, inner - first] = 1
        labels = np.where(begins, IGNORED, ids)
        labels[:, 0] = IGNORED
        segments = torch.from_numpy(begins.cumsum(1)) if self.apart else None
        return Batch(torch.from_numpy(ids), torch.from_numpy(labels), segment_ids=segments)

    def made_of(self) -> dict[str, str]:
        """Returns digests of the tokens, and of what they were made of."""
        return self.shards.made_of()

    def documents(self, indices: Sequence[int] | Tensor) -> Tensor:
        """Returns the number of the document of each token of these windows [B, T]."""
        firsts = np.array([self._first(int(index)) for index in indices])
        places = firsts[:, None] + np.arange(self.length)
        return torch.from_numpy(np.searchsorted(self.shards.starts, places, "right") - 1)

    def show(self, row: int) -> str:
        """Returns the text of a window."""
        first = self._first(row)
        return self._decode(self.shards.read(first, first + self.length))

    def _first(self, index: int) -> int:
        """The place of a window's first token."""
        if not 0 <= index < len(self):
            raise IndexError(f"window {index}; allowed: 0 to {len(self) - 1}")
        return index * (self.length - 1)


def kept_shards(
    folder: Path,
    name: str,
    about: Mapping[str, Any],
    documents: Callable[[], Iterable[Document]],
    *,
    vocab_size: int,
    notes: Mapping[str, Any] | None = None,
    shard_tokens: int = SHARD_TOKENS,
) -> Shards:
    """Returns the shards of `documents`: those that `folder` keeps for `about` and `name`, or new ones. `notes` are stored too,
    as they stand when the last document has been read."""
    about = {"format": FORMAT, **about}
    place = folder / f"{name}-{hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]}"
    if place.is_dir():
        return Shards(place)
    _say_why(folder, name, about)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        clear_leftovers(folder)  # of processes that were killed while they tokenised
        with _alone(place):
            if place.is_dir():  # made by another process meanwhile
                return Shards(place)
            with whole_folder(place, needed=0, kept="nothing was lost") as made:
                writer = _Writer(made, np.uint16 if vocab_size <= 1 << 16 else np.uint32, shard_tokens)
                for document in documents():
                    writer.add(document)
                if len(writer.starts) == 1:
                    raise NoDocuments(f"data: no document is left for {name}")
                writer.close(about, notes or {})
    except DiskFull:
        raise OSError(f"{place}: the tokens cannot be written (the disk is full)") from None
    except OSError as error:
        raise OSError(f"{place}: the tokens cannot be written ({error.strerror or error})") from error
    return Shards(place)


class NoDocuments(ValueError):  # noqa: N818  (it is what happened; whoever knows the data says why)
    """Nothing is left to make shards of."""


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Holds a set for this process while it is made; another process waits."""
    import fcntl  # not there on every system; reading shards does not need it

    with place.with_name(f".{place.name}.lock").open("w") as file:  # it stays: one that came and went would let two in
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            warnings.warn(f"{place}: another process is tokenising it; waiting for it to finish", stacklevel=5)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _Writer:
    """Writes documents as shards into a folder."""

    def __init__(self, folder: Path, dtype: type, shard_tokens: int) -> None:
        self.folder, self.dtype, self.shard_tokens = folder, dtype, shard_tokens
        self.starts = [0]
        self._digests: list[int] = []
        self._tokens: list[np.ndarray] = []
        self._answers: list[np.ndarray] = []
        self._held = self._shard = 0

    def add(self, document: Document) -> None:
        ids, answers = document
        tokens: np.ndarray = np.asarray(ids, dtype=self.dtype)
        self._tokens.append(tokens)
        # in one width, so that sets of different vocabularies' dtypes compare
        digest = hashlib.blake2b(tokens.astype("<u4").tobytes(), digest_size=8).digest()
        self._digests.append(int.from_bytes(digest, "little"))
        if answers is not None:
            self._answers.append(np.asarray(answers, dtype=np.uint8))
        self.starts.append(self.starts[-1] + len(ids))
        self._held += len(ids)
        if self._held >= self.shard_tokens:
            self._flush()

    def close(self, about: Mapping[str, Any], notes: Mapping[str, Any]) -> None:
        if self._tokens:
            self._flush()
        self._save("starts.npy", np.asarray(self.starts, dtype=np.int64))
        self._save("digests.npy", np.asarray(self._digests, dtype=np.uint64))
        write_json(self.folder / INDEX, {"about": about, "notes": dict(notes)})

    def _flush(self) -> None:
        for kind, arrays in (("tokens", self._tokens), ("answers", self._answers)):
            if arrays:
                self._save(f"{kind}-{self._shard:05d}.npy", np.concatenate(arrays))
            arrays.clear()
        self._held, self._shard = 0, self._shard + 1

    def _save(self, name: str, array: np.ndarray) -> None:
        np.save(self.folder / name, array, allow_pickle=False)


def _say_why(folder: Path, name: str, about: Mapping[str, Any]) -> None:
    """Says what differs from the nearest set of the same name, so that nobody wonders why text is tokenised again."""
    others = []
    for path in sorted(folder.glob(f"{name}-*/{INDEX}")):
        try:
            other = json.loads(path.read_text())["about"]
            others.append((sorted(key for key in {*about, *other} if about.get(key) != other.get(key)), path.parent.name))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    differing, beside = min(others, key=lambda found: len(found[0]), default=([], ""))
    if len(differing) == 1 or (differing and "source" not in differing):  # else it is simply other data
        warnings.warn(f"{folder}: {name} is tokenised anew; {beside} has another {', '.join(differing)}", stacklevel=4)
