"""Running text, from local files or from a Hugging Face dataset that is streamed: tokenised once, packed into windows."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from loopwright.data.batch import Progress, Splits
from loopwright.data.records import FilePart, Files, Record, Records, text_field
from loopwright.data.tokenizer import Tokenizer
from loopwright.data.tokens import Document, NoDocuments, Shards, Windows, kept_shards
from loopwright.schema import check_count
from loopwright.storage.manifest import entries_of
from loopwright.untrusted import first_line

FINEWEB = "HuggingFaceFW/fineweb-edu"
GROUP = 256  # documents that are tokenised at once


class WindowedText:
    """Documents that are tokenised once and cut into windows. Abstract: a kind says which records each split reads (`parts`)."""

    alike = True  # as in `Splits`, known before anything is read
    where: str  # named in errors
    parts: Mapping[str, FilePart]

    def __init__(self, tokenizer: str, field: str, length: int, apart: bool) -> None:
        self.length, self.tokenizer, self.field = check_count(self.where, "length", length, least=2), tokenizer, field
        self.apart = apart

    def splits(self, folder: Path, progress: Progress | None = None) -> Splits:
        """Returns the windows, tokenised where that has not been done; token shards are kept in `folder`."""
        tokenizer = Tokenizer(self.tokenizer)
        windows, notes = {}, {}
        for name, part in self.parts.items():
            about = {"source": part.fingerprint(), "field": self.field, "tokenizer": tokenizer.fingerprint}
            counts = {"empty": 0}

            def documents(name: str = name, part: FilePart = part, counts: dict[str, int] = counts) -> Iterator[Document]:
                return _documents(name, part, self.field, tokenizer, counts, progress)

            shards = part_shards(self.where, folder, name, part, about, documents, tokenizer, counts, self.length)
            windows[name] = Windows(shards, self.length, tokenizer.decode, apart=self.apart)
            notes[name] = {"documents": shards.documents, "tokens": shards.tokens, "windows": len(windows[name]), **shards.notes}
        warn_of_leaks(self.where, {name: each.shards for name, each in windows.items()})
        train, valid = windows.pop("train"), windows.pop("valid")
        return Splits(
            train, valid, windows,
            vocab_size=tokenizer.vocab_size, eos_id=tokenizer.eos_id, pad_id=tokenizer.pad_id, notes=notes,
            tokenizer=tokenizer.own, alike=True,
        )  # fmt: skip


class Text(WindowedText):
    """Documents of local files: JSON lines with a text `field`, or plain text (one document a file, or between `separator`s).

    Where no `valid_files` are given, the first `valid` documents are held out of `files` instead. `test_files` are one list
    (the test `test`) or one for each name. `limit` is the number of documents trained on: the first ones, or with `limit_seed`
    some drawn by lot.
    """

    where = "data (text)"

    def __init__(
        self,
        *,
        files: str | list[str],
        tokenizer: str,
        valid_files: str | list[str] | None = None,
        test_files: str | list[str] | dict[str, Any] | None = None,
        field: str = "text",
        separator: str | None = None,
        length: int = 1024,
        apart: bool = True,
        limit: int | None = None,
        limit_seed: int | None = None,
        valid: int = 100,
    ) -> None:
        super().__init__(tokenizer, field, length, apart)

        def read(patterns: str | Sequence[str]) -> Files:
            return Files(patterns, field=field, separator=separator)

        self.parts = split_parts(
            self.where, read(files), None if valid_files is None else read(valid_files), limit, valid,
            {name: read(patterns) for name, patterns in named_tests(test_files).items()}, limit_seed,
        )  # fmt: skip


class Hub(WindowedText):
    """Documents of a Hugging Face dataset, streamed: nothing but what is read is downloaded, and that once.

    The dataset is a hub id or a folder that the `datasets` package can read. Where no `valid_split` is given, the first `valid`
    documents are held out of `split` instead. Give a `revision` to be sure of reading the same documents again.
    """

    where = "data (hub)"

    def __init__(
        self,
        *,
        tokenizer: str,
        dataset: str = FINEWEB,
        subset: str | None = None,
        split: str = "train",
        valid_split: str | None = None,
        test_split: str | None = None,
        revision: str | None = None,
        field: str = "text",
        length: int = 1024,
        apart: bool = True,
        limit: int | None = None,
        limit_seed: int | None = None,
        valid: int = 1_000,
    ) -> None:
        super().__init__(tokenizer, field, length, apart)
        subset = "sample-10BT" if subset is None and dataset == FINEWEB else subset
        rows = {name: HubRows(dataset, subset, name, revision) for name in (split, valid_split, test_split) if name is not None}
        tests = {} if test_split is None else {"test": rows[test_split]}
        held = None if valid_split is None else rows[valid_split]
        self.parts = split_parts(self.where, rows[split], held, limit, valid, tests, limit_seed)


@dataclass(frozen=True)
class HubRows:
    """The rows of a Hugging Face dataset as records, streamed."""

    dataset: str
    subset: str | None = None
    split: str = "train"
    revision: str | None = None

    def fingerprint(self) -> str:
        """Returns the name of what is read, and of a folder a digest of its files; what lies behind a hub id is fixed by a revision
        alone."""
        place = Path(self.dataset)
        files = f" {json.dumps(entries_of(place))}" if place.is_dir() else ""
        return f"{self.dataset} {self.subset} {self.split} {self.revision}{files}"

    def count(self) -> int:
        """Returns how many rows the dataset says that it has; where it does not say, they are read for it."""
        with self._reading() as rows:
            split = (getattr(rows.info, "splits", None) or {}).get(self.split)
        count = getattr(split, "num_examples", 0)
        return count or sum(1 for _ in self)

    def __iter__(self) -> Iterator[Record]:
        with self._reading() as rows:
            for number, row in enumerate(rows):
                yield f"{self.dataset} {self.split} (row {number})", row

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        try:
            import datasets
        except ImportError:
            raise ValueError("data: a Hugging Face dataset needs the package datasets; pip install datasets") from None
        try:
            yield datasets.load_dataset(self.dataset, self.subset, split=self.split, revision=self.revision, streaming=True)
        except Exception as error:  # the hub client, requests, pyarrow and the operating system raise their own
            raise ValueError(f"data: {self.dataset} {self.split} cannot be read ({first_line(error)})") from None


def named_tests(files: str | Sequence[str] | Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the test files by name; a list without names is the test `test`."""
    if files is None:
        return {}
    return dict(files) if isinstance(files, Mapping) else {"test": files}


def split_parts(
    where: str, train: Records, valid: Records | None, limit: int | None, held_out: int, tests: Mapping[str, Records],
    limit_seed: int | None = None,
) -> dict[str, FilePart]:  # fmt: skip
    """Returns what is read for each split; without a source for valid, the first `held_out` records of train are.

    Train has the first `limit` of the others, or, with a `limit_seed`, as many drawn by lot.
    """
    if limit is not None:
        check_count(where, "limit", limit, least=1)
    if limit_seed is not None:
        check_count(where, "limit_seed", limit_seed)
        if limit is None:
            raise ValueError(f"{where}: limit_seed is {limit_seed} without a limit; allowed: with limit, how many records to draw")
    check_count(where, "valid", held_out, least=1)
    if valid is None:
        parts = {"train": FilePart(train, held_out, limit, limit_seed), "valid": FilePart(train, 0, held_out)}
    else:
        parts = {"train": FilePart(train, 0, limit, limit_seed), "valid": FilePart(valid)}
    wrong = next((name for name in tests if name in parts or not re.fullmatch(r"[\w.]+", str(name))), None)
    if wrong is not None:
        raise ValueError(f"{where}: a test is called {wrong!r}; allowed: letters, digits and _, but not train or valid")
    return parts | {name: FilePart(records) for name, records in tests.items()}


def warn_of_leaks(where: str, shards: Mapping[str, Shards]) -> None:
    """Warns of documents that are measured and trained on."""
    for name, measured in shards.items():
        count = 0 if name == "train" else measured.shared_with(shards["train"])
        if count:
            message = f"{count:,} of the {measured.documents:,} documents of {name} are in train too, token for token"
            warnings.warn(f"{where}: {message}: their loss says nothing about unseen text", stacklevel=2)


def part_shards(
    where: str, folder: Path, name: str, part: FilePart, about: Mapping[str, Any], documents: Callable[[], Iterator[Document]],
    tokenizer: Tokenizer, counts: Mapping[str, int], length: int,
) -> Shards:  # fmt: skip
    """Returns the shards of one part, kept or made. Where nothing is left of it, says what became of its records."""
    try:
        return kept_shards(folder, name, about, documents, vocab_size=tokenizer.vocab_size, notes=counts)
    except NoDocuments:
        left_out = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
        if left_out:
            advice = f"; give a length above {length:,}" if counts.get("answer cut off") else ""
            raise ValueError(f"{where}: nothing is left for {name}; its records were left out: {left_out}{advice}") from None
        if not part.skip:
            raise ValueError(f"{where}: the source of {name} holds no records") from None
        raise ValueError(
            f"{where}: nothing is left for {name}, since the first {part.skip:,} documents are held out (valid: {part.skip}); "
            f"give {HELD_OUT[where]}"
        ) from None


# what one can do where valid takes all the documents
HELD_OUT = {
    "data (text)": "a smaller valid, valid_files, or a separator that cuts a .txt file into documents",
    "data (hub)": "a smaller valid, or a valid_split",
    "data (chat)": "a smaller valid, valid_files or a valid_split",
}


def _documents(
    name: str, part: FilePart, field: str, tokenizer: Tokenizer, counts: dict[str, int], progress: Progress | None
) -> Iterator[Document]:
    done = 0
    records = iter(part)
    while group := list(islice(records, GROUP)):
        texts = [text for record in group if (text := text_field(record, field)) is not None]
        counts["empty"] += len(group) - len(texts)
        for ids in tokenizer.encode(texts) if texts else []:
            yield [*tokenizer.opening, *ids, tokenizer.eos_id], None
        done += len(group)
        if progress is not None:
            progress(f"tokenising {name}", done, part.limit)
