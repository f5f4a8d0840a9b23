"""Safetensors files: what they hold is known from their headers before anything is read, and tensors go straight to a device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from loopwright.checkpoints.families.family import Family, Rule, listed
from loopwright.storage.files import read_json
from loopwright.untrusted import parse_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
HEADER_BYTES = 100_000_000  # what safetensors itself reads
# what a header calls them; quantised and integer weights are not among them
DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
_KINDS = {dtype: name for name, dtype in {**DTYPES, "U8": torch.uint8, "I64": torch.int64}.items()}


@dataclass(frozen=True)
class Stored:
    """One tensor of a file, as the header describes it."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """Returns every tensor of a folder's model.safetensors, or of the shards its index names."""
    if (folder / SINGLE).is_file():
        return read_header(folder / SINGLE)
    if not (folder / INDEX).is_file():
        raise FileNotFoundError(_why_no_weights(folder))
    places = read_json(folder / INDEX).get("weight_map")
    if not isinstance(places, Mapping) or not places or not all(isinstance(file, str) for file in places.values()):
        raise ValueError(f"{folder / INDEX}: weight_map does not name a file for each tensor; the index is damaged")
    files = sorted(set(places.values()))
    outside = [file for file in files if Path(file).name != file or not file.endswith(".safetensors")]
    if outside:
        raise ValueError(f"{folder / INDEX}: names {listed(outside)}; allowed: .safetensors files of the same folder")
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raise FileNotFoundError(f"{folder}: {len(missing)} of {len(files)} shards are missing: {listed(missing)}")
    stored: dict[str, Stored] = {}
    for file in files:
        header = read_header(folder / file)
        twice = sorted(set(header) & set(stored))
        if twice:
            raise ValueError(f"{folder / file}: holds tensors that another shard holds too: {listed(twice)}")
        stored.update(header)
    nowhere = [name for name, file in places.items() if name not in stored or stored[name].file.name != file]
    if nowhere:
        raise ValueError(f"{folder / INDEX}: points to tensors that the shards do not hold: {listed(nowhere)}")
    return stored


def read_header(path: Path) -> dict[str, Stored]:
    """Returns the tensors of one safetensors file; a file that is not as long as its header says is refused."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise ValueError(f"{path}: {size} bytes, too short for its own header; the file is truncated or not safetensors")
        if length > HEADER_BYTES:
            raise ValueError(f"{path}: its header would have {length:,} bytes; the file is damaged or not safetensors")
        try:
            header = parse_json(file.read(length), str(path))
            entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
            end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
            tensors = {name: _stored(path, entry) for name, entry in entries.items()}
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise ValueError(f"{path}: its header is not readable; the file is damaged or not safetensors") from None
    if 8 + length + end != size:
        raise ValueError(f"{path}: {size} bytes where its header says {8 + length + end}; the file is truncated or damaged")
    return tensors


def _stored(path: Path, entry: Mapping[str, Any]) -> Stored:
    """Returns what a header says of a tensor: sizes of at least 0, and a kind that is text."""
    shape, dtype = entry["shape"], entry["dtype"]
    if not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape) or not isinstance(dtype, str):
        raise ValueError(f"{path}: a tensor without a shape or a kind")
    return Stored(path, tuple(shape), dtype)


def check_fit(where: str, family: Family, rules: Iterable[Rule], stored: Mapping[str, Stored], *, tied_head: str | None) -> None:
    """Raises a ValueError that lists every tensor that is missing, unexpected or of another shape or kind."""
    wanted = {rule.theirs: rule.shape for rule in rules}
    missing = [name for name in wanted if name not in stored]
    spare = {tied_head, *family.derived}
    unexpected = [name for name in stored if name not in wanted and name not in spare and not name.endswith(family.ignored)]
    wrong = [
        f"{name} is {list(stored[name].shape)}, expected {list(shape)}"
        for name, shape in wanted.items()
        if name in stored and stored[name].shape != shape
    ]
    coarse = [f"{name} ({stored[name].dtype})" for name in wanted if name in stored and stored[name].dtype not in DTYPES]
    faults = {"missing": missing, "unexpected": unexpected, "of another shape": wrong, "not of a float kind": coarse}
    problems = [f"{what}: {listed(names)}" for what, names in faults.items() if names]
    if problems:
        raise ValueError(f"{where}: its tensors do not fit the family {family.name}; " + "; ".join(problems))


def file_dtype(rules: Iterable[Rule], stored: Mapping[str, Stored]) -> torch.dtype:
    """Returns the dtype that most values of a checkpoint have."""
    values: dict[str, int] = {}
    for rule in rules:
        entry = stored[rule.theirs]
        values[entry.dtype] = values.get(entry.dtype, 0) + torch.Size(entry.shape).numel()
    return DTYPES[max(values, key=lambda kind: values[kind])]


def fill(
    model: nn.Module, rules: Iterable[Rule], stored: Mapping[str, Stored], *, dtype: torch.dtype, device: torch.device
) -> None:
    """Gives each parameter of a model on the meta device its values, one foreign tensor in memory at a time."""
    by_file: dict[Path, list[Rule]] = {}
    for rule in rules:
        by_file.setdefault(stored[rule.theirs].file, []).append(rule)
    for file, wanted in by_file.items():
        with opened(file) as handle:
            for rule in wanted:
                for name, piece in rule.split(handle.get_tensor(rule.theirs)).items():
                    _set(model, name, piece, dtype, device)


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """Gives a safetensors file to read from; what its own checks find wrong comes out as one line."""
    try:
        with safe_open(file, framework="pt", device="cpu") as handle:
            yield handle
    except SafetensorError as error:
        raise ValueError(f"{file}: not readable ({str(error).splitlines()[0]}); the file is damaged") from None


def load_tensors(folder: str | Path, name: str, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors of one group of a checkpoint, on the CPU.

    Each must be one of `expected`, in its shape and dtype, which is known before anything is read; which of them must be
    there is for whoever takes them.
    """
    path = Path(folder) / f"{name}.safetensors"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: missing")
    return read_tensors(str(path), read_header(path), expected)


def read_tensors(where: str, stored: Mapping[str, Stored], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns stored tensors, on the CPU. Each must be one of `expected`, in its shape and dtype, before anything is read."""
    unexpected = [name for name in stored if name not in expected]
    forms = {name: (_KINDS.get(tensor.dtype, str(tensor.dtype)), list(tensor.shape)) for name, tensor in expected.items()}
    wrong = [
        f"{name} is {entry.dtype}{list(entry.shape)}, expected {forms[name][0]}{forms[name][1]}"
        for name, entry in stored.items()
        if name in forms and (entry.dtype, list(entry.shape)) != forms[name]
    ]
    faults = {"unexpected": unexpected, "of another form": wrong}
    problems = [f"{what}: {names[0]}" + f" and {len(names) - 1} more" * (len(names) > 1) for what, names in faults.items() if names]
    if problems:
        raise ValueError(f"{where}: its tensors do not fit; " + "; ".join(problems))
    values: dict[str, Tensor] = {}
    for path in sorted({entry.file for entry in stored.values()}):
        with opened(path) as handle:
            values |= {name: handle.get_tensor(name) for name, entry in stored.items() if entry.file == path}
    return values


def check_tied(stored: Mapping[str, Stored], embedding: str, head: str | None) -> None:
    """Raises a ValueError where a stored copy of the tied head is not the embedding."""
    if head is None or head not in stored:
        return
    pair = []
    for name in (embedding, head):
        with opened(stored[name].file) as handle:
            pair.append(handle.get_tensor(name))
    if not torch.equal(*pair):
        raise ValueError(
            f"{stored[head].file}: the config ties head and embedding, but {head} is not equal to {embedding}; "
            "set the tie field of config.json to false if the head is its own"
        )


def _set(model: nn.Module, name: str, value: Tensor, dtype: torch.dtype, device: torch.device) -> None:
    *path, leaf = name.split(".")
    owner = model.get_submodule(".".join(path))
    old = getattr(owner, leaf)
    # a fresh copy: a view would keep the whole file, or the whole fused tensor, alive
    new = torch.empty(old.shape, dtype=dtype, device=device).copy_(value.reshape(old.shape))
    setattr(owner, leaf, nn.Parameter(new, requires_grad=old.requires_grad))


def _why_no_weights(folder: Path) -> str:
    pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
    if (folder / "adapters.safetensors").is_file():
        return f"{folder}: holds adapters only; put them on their base with load_adapters"
    if pickled:
        return (
            f"{folder}: holds {listed(pickled)} but no {SINGLE}; pickled weights are not read, since they can run code: "
            "save the model as safetensors first"
        )
    return f"{folder}: there is neither {SINGLE} nor {INDEX}"
