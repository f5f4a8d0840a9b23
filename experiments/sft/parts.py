"""A folder cut into parts below a size and opened again, for transfers of limited size.

The folder becomes one compressed archive, `.gz` files opened first (they would not get smaller), and each part a folder of its own:
its bytes, and how many parts the archive has with its SHA-256.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import tarfile
from collections.abc import Sequence
from pathlib import Path

BYTES, ABOUT = "part", "about.json"


def split(folder: Path, out: Path, most: int) -> list[Path]:
    """Writes a folder as parts of at most `most` bytes each, out/0, out/1, …, and returns them."""
    if most < 1:
        raise ValueError(f"split: most is {most}; allowed: at least one byte")
    whole = archive(folder)
    pieces = [whole[start : start + most] for start in range(0, len(whole), most)]
    about = {"parts": len(pieces), "sha256": hashlib.sha256(whole).hexdigest()}
    made = []
    for number, piece in enumerate(pieces):
        place = out / str(number)
        place.mkdir(parents=True, exist_ok=True)
        (place / BYTES).write_bytes(piece)
        (place / ABOUT).write_text(json.dumps({"part": number, **about}) + "\n")
        made.append(place)
    return made


def archive(folder: Path) -> bytes:
    """Returns all files of a folder as one compressed archive, `.gz` files without their compression and that ending."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files:
        raise ValueError(f"split: {folder} holds no file; allowed: a folder with files")
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for path in files:
            name, data = str(path.relative_to(folder)), path.read_bytes()
            if path.suffix == ".gz":
                name, data = name.removesuffix(".gz"), gzip.decompress(data)
            if name in tar.getnames():
                raise ValueError(f"split: {name} and {name}.gz in {folder}; allowed: one of them")
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return lzma.compress(raw.getvalue(), preset=9)  # a text is longer than the window of the default


def join(parts: Sequence[Path], out: Path) -> Path:
    """Opens the parts of one archive, in any order, into a folder, and returns it."""
    found = {about["part"]: (about, place) for place in parts for about in [json.loads((place / ABOUT).read_text())]}
    wholes = {(about["parts"], about["sha256"]) for about, _ in found.values()}
    if len(wholes) != 1:
        raise ValueError(f"join: the parts are of {len(wholes)} archives; allowed: all of one")
    ((count, wanted),) = wholes
    missing = [str(number) for number in range(count) if number not in found]
    if missing:
        raise ValueError(f"join: missing of {count} parts: {', '.join(missing)}")
    whole = b"".join((found[number][1] / BYTES).read_bytes() for number in range(count))
    seen = hashlib.sha256(whole).hexdigest()
    if seen != wanted:
        raise ValueError(f"join: the SHA-256 of the parts together is {seen}, that of the archive {wanted}; copy them again")
    out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(whole))) as tar:
        tar.extractall(out, filter="data")
    return out
