"""Shards and windows: every token once, borders kept, written whole or not at all, damage found."""

from __future__ import annotations

import errno
import os
import signal
import time
import warnings
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loopwright as lw
from loopwright.data.tokens import Document, NoDocuments, Shards, Windows, kept_shards

ABOUT = {"source": "here", "tokenizer": "words"}
documents_of_ids = st.lists(st.lists(st.integers(0, 999), min_size=1, max_size=12), min_size=1, max_size=12)


def keep(folder: Path, documents: list[list[int]], about: dict[str, Any] = ABOUT, **options: Any) -> Shards:
    made: list[Document] = [(ids, None) for ids in documents]
    return kept_shards(folder, "train", about, lambda: made, **{"vocab_size": 1000, **options})


@pytest.mark.long
@settings(max_examples=25)
@given(documents_of_ids, st.integers(2, 9), st.integers(1, 30))
def test_every_token_is_a_label_once_and_borders_are_kept(documents: list[list[int]], length: int, shard_tokens: int) -> None:
    with TemporaryDirectory() as folder:
        shards = keep(Path(folder), documents, shard_tokens=shard_tokens)
        joined = [token for ids in documents for token in ids]
        owner = [place for place, ids in enumerate(documents) for _ in ids]
        assert (shards.tokens, shards.documents) == (len(joined), len(documents))
        if len(joined) < length:
            with pytest.raises(ValueError, match="allowed: at least one window"):
                Windows(shards, length, str)
            return
        windows = Windows(shards, length, str)
        stride = length - 1  # a window begins with the last token of the one before it
        count = (len(joined) - 1) // stride  # the last, shorter one is dropped
        assert len(windows) == count
        batch = windows.batch(range(count))
        assert batch.input_ids[:, 1:].flatten().tolist() == joined[1 : 1 + count * stride]
        assert batch.input_ids[:, 0].tolist() == joined[: count * stride : stride]
        assert batch.segment_ids is not None and batch.attention_mask is None
        assert windows.documents(range(count))[:, 1:].flatten().tolist() == owner[1 : 1 + count * stride]
        for row in range(count):
            owners = owner[row * stride : row * stride + length]
            assert batch.segment_ids[row].tolist() == [own - owners[0] for own in owners]
            for place in range(length):
                inside = place > 0 and owners[place] == owners[place - 1]  # predicted from its own document, or not at all
                assert int(batch.labels[row, place]) == (joined[row * stride + place] if inside else -100)
        whole = Windows(shards, length, str, apart=False).batch(range(count))
        assert whole.segment_ids is None and torch.equal(whole.input_ids, batch.input_ids)
        assert torch.equal(whole.labels[:, 1:], whole.input_ids[:, 1:]) and bool((whole.labels[:, 0] == -100).all())


def test_windows_in_any_order_with_any_index() -> None:
    with TemporaryDirectory() as folder:
        windows = Windows(keep(Path(folder), [[1, 2, 3], [4, 5, 6, 7]], shard_tokens=3), 2, lambda ids: "-".join(map(str, ids)))
        batch = windows.batch(torch.tensor([4, 0, 4]))
        assert batch.input_ids.tolist() == [[5, 6], [1, 2], [5, 6]] and windows.show(2) == "3-4"
        for wrong in (6, -1):
            with pytest.raises(IndexError, match=f"window {wrong}; allowed: 0 to 5"):
                windows.batch([wrong])


@pytest.mark.parametrize("name", ["universal-tiny", "huginn-tiny", "ouro-1.4b-tiny"])
def test_packed_documents_are_predicted_as_alone(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    model = lw.build(name).eval()
    documents = [torch.randint(0, 90, (length,)).tolist() for length in (5, 3, 6)]
    batch = Windows(keep(tmp_path, documents), 14, str).batch([0])
    with torch.no_grad():
        packed = model(batch.input_ids, segment_ids=batch.segment_ids, labels=batch.labels).loss * batch.targets
        alone = [model(x := torch.tensor([ids]), labels=x).loss * (len(ids) - 1) for ids in documents]
    assert batch.targets == 11 and torch.allclose(packed, torch.stack(alone).sum(), rtol=1e-5)


def test_documents_of_both_are_counted(tmp_path: Path) -> None:
    train = keep(tmp_path / "train", [[1, 2], [3], [4, 5, 6]])
    measured = keep(tmp_path / "valid", [[4, 5], [4, 5, 6], [3], [1, 2, 3], [3]], vocab_size=1 << 17)  # tokens of another width
    assert (measured.shared_with(train), train.shared_with(measured)) == (3, 2)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)])
def test_tokens_are_as_small_as_the_vocabulary_allows(tmp_path: Path, vocab_size: int, dtype: type) -> None:
    shards = keep(tmp_path, [[vocab_size - 1, 0]], vocab_size=vocab_size)
    assert shards._tokens[0].dtype == dtype and shards.read(0, 2).tolist() == [vocab_size - 1, 0]


def test_answers_are_kept_beside_the_tokens(tmp_path: Path) -> None:
    made: list[Document] = [([1, 2, 3], [False, True, True]), ([4, 5], [True, False])]
    shards = kept_shards(tmp_path, "train", ABOUT, lambda: made, vocab_size=9, shard_tokens=4, notes={"cut": 1})
    assert shards.answers(1, 5).tolist() == [True, True, True, False] and shards.notes == {"cut": 1}


def refuse() -> Iterator[Document]:
    raise AssertionError("the documents are read again")
    yield


def test_what_fits_is_used_again(tmp_path: Path) -> None:
    first = keep(tmp_path, [[1, 2], [3]])
    again = kept_shards(tmp_path, "train", ABOUT, refuse, vocab_size=1000)
    assert again.folder == first.folder and again.read(0, 3).tolist() == [1, 2, 3]


def test_what_does_not_fit_is_made_anew_and_said(tmp_path: Path) -> None:
    first = keep(tmp_path, [[1, 2]])
    with pytest.warns(UserWarning, match=rf"train is tokenised anew; {first.folder.name} has another tokenizer$"):
        other = keep(tmp_path, [[7]], {**ABOUT, "tokenizer": "other"})
    assert other.read(0, 1).tolist() == [7] and keep(tmp_path, []).read(0, 2).tolist() == [1, 2]  # both are kept
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        keep(tmp_path, [[8]], {"source": "elsewhere", "tokenizer": "third"})  # other data: nothing to say


def test_nothing_half_written_is_left(tmp_path: Path) -> None:
    def broken() -> Iterator[Document]:
        yield [1, 2, 3], None
        raise ValueError("x.jsonl:2: not valid JSON")

    with pytest.raises(ValueError, match="not valid JSON"):
        kept_shards(tmp_path, "train", ABOUT, broken, vocab_size=9, shard_tokens=2)
    with pytest.raises(NoDocuments, match="data: no document is left for train"):
        keep(tmp_path, [])
    assert found_in(tmp_path) == []


def found_in(folder: Path) -> list[str]:
    """What stands in a folder beside the locks, which are empty and stay."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_what_a_killed_process_leaves_is_never_read_and_goes(tmp_path: Path) -> None:
    def killed() -> Iterator[Document]:
        yield [1, 2, 3], None
        os.kill(os.getpid(), signal.SIGKILL)

    child = get_context("fork").Process(target=kept_shards, args=(tmp_path, "train", ABOUT, killed), kwargs={"vocab_size": 9})
    child.start()
    child.join(30)
    assert child.exitcode == -signal.SIGKILL and len(found_in(tmp_path)) == 1
    shards = keep(tmp_path, [[4, 5]])
    assert shards.read(0, 2).tolist() == [4, 5] and found_in(tmp_path) == [shards.folder.name]


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match=r"train-\w{12}: the tokens cannot be written \(the disk is full\)$"):
        keep(tmp_path, [[1]])
    assert found_in(tmp_path) == []


def test_of_two_processes_at_once_one_waits_and_finds_it_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, waiting = tmp_path / "begun", tmp_path / "waiting"
    warn = warnings.warn

    def slowly() -> Iterator[Document]:  # not done before the other process waits for it
        begun.touch()
        latest = time.monotonic() + 60
        while not waiting.exists() and time.monotonic() < latest:
            time.sleep(0.01)
        yield [1, 2], None

    def told(message: str, *, stacklevel: int) -> None:
        warn(message, stacklevel=stacklevel + 1)
        waiting.touch()

    child = get_context("fork").Process(target=kept_shards, args=(tmp_path, "train", ABOUT, slowly), kwargs={"vocab_size": 9})
    child.start()
    while not begun.exists() and child.is_alive():
        time.sleep(0.01)
    monkeypatch.setattr(warnings, "warn", told)
    with pytest.warns(UserWarning, match="another process is tokenising it; waiting"):
        shards = kept_shards(tmp_path, "train", ABOUT, refuse, vocab_size=9)
    child.join(30)
    assert child.exitcode == 0 and shards.read(0, 2).tolist() == [1, 2]


@pytest.mark.long
def test_damage_is_found_when_shards_are_opened(tmp_path: Path) -> None:
    """Every file, at bytes all over it: flipped, cut, missing; nothing is tokenised over it in silence."""
    shards = keep(tmp_path, [[1, 2, 3]] * 40)
    names = {"digests.npy", "index.json", "manifest.json", "starts.npy", "tokens-00000.npy"}
    assert {path.name for path in shards.folder.iterdir()} == names
    for path in sorted(shards.folder.iterdir()):
        whole = path.read_bytes()
        for at in range(0, len(whole), 5):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(ValueError, match=r"; delete .*train-\w{12} to have it made anew$"):
                Shards(shards.folder)
        path.write_bytes(whole[:-1])
        with pytest.raises(ValueError, match=rf"{path.name}: .*; delete"):
            keep(tmp_path, [])
        path.unlink()
        with pytest.raises(ValueError, match=f"{path.name}: missing; delete"):
            keep(tmp_path, [])
        path.write_bytes(whole)
    assert keep(tmp_path, []).read(0, 3).tolist() == [1, 2, 3]
