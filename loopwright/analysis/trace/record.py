"""Traces on the disk: one safetensors file per example, and a JSON file that says what the set is. A killed run goes on.

An example's file is written whole or not at all. The set's file holds what the numbers depend on; a folder that holds another
set is refused, not mixed. The batch is no part of it: a row's numbers are the same in any batch, up to rounding.
Both kinds of file hold a sha256 of themselves, so that a file that was changed is refused and not read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from loopwright.analysis.trace.edit import check_edit
from loopwright.analysis.trace.places import Places
from loopwright.analysis.trace.trace import (
    COLLECTS,
    Trace,
    check_capture,
    check_collect,
    check_lengths,
    read_capture,
    trace,
    trace_depth,
)
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.taps import Tap
from loopwright.schema import check_whole
from loopwright.storage.files import read_json, write_json, write_whole
from loopwright.storage.folder import check_out, clear_leftovers

SET = "set.json"
WORDS = "loopwright-trace"  # the entry of a file's header that says which places there are
UNSEALED = "0" * 64  # stands in a file's header while its sha256 is made
BATCH = 8
SAMPLED = 4096  # numbers of each weight that its fingerprint is made of
Progress = Callable[[int, int], None]


class OutOfMemory(ValueError):  # noqa: N818  (it is what happened; the message says the rest)
    """The batch does not fit; the message says what was kept and which batch to take."""


def save_trace(found: Trace, path: str | Path) -> None:
    """Writes a trace of one example or more as one safetensors file."""
    tensors = {f"values.{name}": x for name, x in found.values.items()}
    tensors |= {f"captured.{name}": x for name, x in found.captured.items()}
    tensors |= {"input_ids": found.input_ids, "valid": found.valid}
    # one entry: safetensors writes several in any order, and the same trace must give the same bytes
    words = {WORDS: json.dumps({"places": asdict(found.places), "sha256": UNSEALED})}
    data = save({name: x.contiguous() for name, x in tensors.items()}, words)
    write_whole(path, data.replace(UNSEALED.encode(), _seal(data).encode(), 1))


def load_trace(path: str | Path) -> Trace:
    """Returns the trace in a file, or says in one line what is wrong with the file."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such trace")
    data = path.read_bytes()
    try:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        words = json.loads(header["__metadata__"][WORDS])
        places, seal = words["places"], words["sha256"]
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        raise ValueError(f"{path}: not a trace, or damaged; remove it to have it made again") from None
    if not isinstance(seal, str) or _seal(data.replace(seal.encode(), UNSEALED.encode(), 1)) != seal:
        raise ValueError(f"{path}: its content changed (sha256 differs); remove it to have it made again")
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise ValueError(f"{path}: the trace cannot be read ({error}); remove it to have it made again") from None
    parts: dict[str, dict[str, Tensor]] = {"values": {}, "captured": {}}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(".")
        if rest:
            parts[kind][rest] = tensor
    return Trace(Places(**places), tensors["input_ids"], tensors["valid"], **parts)


def _seal(data: bytes) -> str:
    """Returns the sha256 of a file that has zeros where its own sha256 is to stand."""
    return hashlib.sha256(data).hexdigest()


class TraceSet:
    """The traces of a prompt set in a folder, in the order of the prompts; made by `trace_prompts`."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.about: dict[str, Any] = _read_set(self.folder)

    def __repr__(self) -> str:
        return f"TraceSet({str(self.folder)!r}: {len(self)} examples)"

    def __len__(self) -> int:
        return int(self.about["examples"])

    def path(self, index: int) -> Path:
        """Returns where an example's trace lies."""
        return example_path(self.folder, index)

    def __iter__(self) -> Iterator[Trace]:
        return (load_trace(self.path(index)) for index in range(len(self)))


def example_path(folder: Path, index: int) -> Path:
    """Returns where the trace of an example of a set lies."""
    return folder / f"{index:06d}.safetensors"


def trace_prompts(
    model: LoopedForCausalLM,
    prompts: Sequence[Sequence[int]],
    folder: str | Path,
    *,
    depth: int | None = None,
    batch: int = BATCH,
    about: Mapping[str, Any] | None = None,
    collect: Sequence[str] = COLLECTS,
    capture: Mapping[str, Sequence[int]] | None = None,
    edit: Tap | None = None,
    progress: Progress | None = None,
) -> TraceSet:
    """Traces token rows batch by batch into a folder and returns the set. What is already there is not made again.

    `about` holds what else the numbers depend on, such as the model's name. It is written into the set's file; a folder whose file
    says otherwise is an error. Name an `edit` there, {"edited": "second MLP zeroed"}: two edits of one name are one set. The batch
    may change: existing traces are kept, and the rest use the new batch.
    """
    if not prompts or not all(len(row) for row in prompts):
        raise ValueError("trace: an empty prompt, or none at all; allowed: one or more rows of at least one token")
    check_whole("batch", batch, 1)
    # all that can be known beforehand is checked here: a folder once claimed for a set refuses any other
    tokens = [list(map(int, row)) for row in prompts]
    check_lengths(model.config, tokens)
    _check_name(about or {}, edit)
    depth, captured = trace_depth(model.config, depth), read_capture(capture)
    places = Places.of(model.config, depth)
    check_collect(model.config, collect)
    check_capture(places, captured, min(map(len, prompts)))
    check_edit(edit, model.config, depth)
    folder = Path(folder)
    check_out("trace", folder, {SET, *(path.name for path in folder.glob("*.safetensors"))}, "a set of traces")
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(json.dumps(tokens).encode()).hexdigest()
    facts = {
        **(about or {}), "weights": fingerprint(model), "examples": len(prompts), "prompts": digest, "depth": depth,
        "collect": list(collect), "capture": captured, "dtype": str(model.dtype).removeprefix("torch."),
    }  # fmt: skip
    _claim(folder, facts)
    asked = depth if model.config.is_looped else None
    for start in range(0, len(prompts), batch):
        rows = prompts[start : start + batch]
        wanted = [example_path(folder, start + i) for i in range(len(rows))]
        # a batch is run whole where a part of it is missing: the same rows side by side give the same bits
        if not all(path.is_file() for path in wanted):
            ids, mask = pad(rows, model.device)
            try:
                traced = trace(model, ids, asked, attention_mask=mask, collect=collect, capture=captured, edit=edit)
            except RuntimeError as error:
                if not is_full(error):
                    raise
                kept = sum(example_path(folder, i).is_file() for i in range(len(prompts)))
                raise OutOfMemory(_full(batch, kept, len(prompts))) from None
            for path, example in zip(wanted, traced.examples(), strict=True):
                if not path.is_file():  # one that is there may be of another batch, and stays
                    save_trace(example, path)
        if progress is not None:
            progress(start + len(rows), len(prompts))
    return TraceSet(folder)


def fingerprint(model: LoopedForCausalLM) -> str:
    """Returns a hash of a sample of every weight: other weights under the same name are told apart."""
    digest = hashlib.sha256()
    for name, weight in model.state_dict().items():
        flat = weight.detach().flatten()
        sample = flat[:: max(1, flat.numel() // SAMPLED)].float().cpu()
        digest.update(f"{name} {tuple(weight.shape)}".encode() + sample.numpy().tobytes())
    return digest.hexdigest()[:16]


def pad(rows: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Returns rows as one tensor, shorter ones with zeros behind them, and the mask of what is real."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows], device=device)
    return ids, mask


def _check_name(about: Mapping[str, Any], edit: Tap | None) -> None:
    """Raises where an edited set would go by the name of an unedited one, or the other way round."""
    words = about.get("edited")
    if edit is not None and not (isinstance(words, str) and words.strip()):
        raise ValueError(
            f"edit: about['edited'] is {words!r}; allowed: words that name the edit, as about={{'edited': 'second MLP zeroed'}}"
        )
    if edit is None and words:
        raise ValueError(f"about: 'edited' is {words!r}, but no edit was given; allowed: leave it out, or give the edit")


def _claim(folder: Path, facts: dict[str, Any]) -> None:
    there = folder / SET
    if not there.is_file():
        if any(folder.glob("*.safetensors")):
            raise ValueError(
                f"{folder}: holds traces, but no {SET} that says of what; allowed: an empty folder, or a set of traces"
            )
        write_json(there, {**facts, "sha256": _seal(json.dumps(facts).encode())})
        return
    clear_leftovers(folder)
    old = _read_set(folder)
    differs = [name for name in {**old, **facts} if old.get(name) != facts.get(name)]
    if differs:
        said = f"{differs[0]} is {old.get(differs[0])!r} there and {facts.get(differs[0])!r} here"
        raise ValueError(f"{folder}: holds another set of traces ({said}); allowed: the same settings, or another folder")


def _read_set(folder: Path) -> dict[str, Any]:
    """Returns what a set's file says; raises where it is not byte for byte what was written."""
    path = folder / SET
    facts = read_json(path)
    written = json.dumps(facts, indent=1) + "\n"
    if facts.pop("sha256", None) != _seal(json.dumps(facts).encode()) or path.read_bytes() != written.encode():
        raise ValueError(f"{path}: its content changed (sha256 differs); remove {folder} to have the traces made again")
    return facts


def is_full(error: RuntimeError) -> bool:
    """Returns whether an error says that memory ran out."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)  # a GPU's words, and a processor's


def _full(batch: int, done: int, total: int) -> str:
    kept = f"{done} of {total} examples are kept"
    if batch == 1:
        return f"trace: out of memory at one example at a time; {kept}; take shorter prompts or fewer statistics"
    return f"trace: out of memory at batch {batch}; {kept}; batch {max(1, batch // 2)} takes about half as much"
