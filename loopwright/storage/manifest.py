"""Manifests: the size and sha256 of each file of a folder, so that what changed later is found and named."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from loopwright.storage.files import read_json, write_whole

MANIFEST = "manifest.json"
CARD = "README.md"  # for people, who may edit it: no manifest speaks of it
BLOCK = 1 << 26  # a larger file is hashed in blocks: one sum of a large model takes as long as reading it, or longer


class Damaged(ValueError):  # noqa: N818  (it is what the file is)
    """A file is not what was written, by the manifest beside it."""


class Manifest:
    """What the manifest of a folder says of its files. Links are followed: a download may consist of them."""

    def __init__(self, folder: Path, entries: dict[str, Any]) -> None:
        self.folder, self.entries = folder, entries

    @classmethod
    def of(cls, folder: str | Path) -> Manifest | None:
        """Returns the manifest of a folder, None where there is none; raises Damaged where it is not as it was written."""
        path = Path(folder) / MANIFEST
        if not os.path.lexists(path):
            return None
        try:
            data, text = read_json(path), path.read_bytes()
        except (OSError, ValueError) as error:
            raise Damaged(str(error)) from None
        entries = data.get("files")
        # byte for byte what was written, so that every change is a changed name, size or sum, which the files contradict
        if not isinstance(entries, dict) or _canonical(entries).encode() != text:
            raise Damaged(f"{path}: not in the form in which it was written")
        return cls(Path(folder), entries)

    def check_size(self, name: str) -> None:
        """Raises Damaged unless a file that is named is there, in the size it was written in."""
        path, entry = self.folder / name, self.entries.get(name)
        if entry is None:
            raise Damaged(f"{path}: not in the manifest")
        if not os.path.lexists(path):
            raise Damaged(f"{path}: missing")
        if not path.is_file():
            raise Damaged(f"{path}: not a plain file")
        size, stated = path.stat().st_size, entry.get("bytes") if isinstance(entry, dict) else entry
        if size != stated:
            raise Damaged(f"{path}: {size} bytes where the manifest says {stated}")

    def check(self, name: str) -> None:
        """Raises Damaged unless a file is what was written, byte for byte."""
        self.check_size(name)
        path, entry = self.folder / name, self.entries[name]
        # large files of older manifests have one sum
        actual = {"bytes": entry["bytes"], "sha256": _digest(path)} if "sha256" in entry else _entry(path)
        if actual != entry:
            raise Damaged(f"{self.folder / name}: its content changed (sha256 differs)")


def entries_of(folder: str | Path) -> dict[str, Any]:
    """Returns the size and sha256 of each file of a folder."""
    return {name: _entry(Path(folder) / name) for name in _names(Path(folder))}


def write_entries(folder: str | Path, entries: Mapping[str, Any]) -> None:
    """Writes a manifest that says this of the files of a folder."""
    write_whole(Path(folder) / MANIFEST, _canonical(entries))


def verify(folder: str | Path) -> list[str]:
    """Returns what is wrong with a folder by its manifest: nothing where it holds each file as written, and no other, and no link.

    Files whose name begins with a dot are the file system's business, and the README.md is people's.
    """
    folder = Path(folder)
    try:
        manifest = None if (folder / MANIFEST).is_symlink() else Manifest.of(folder)
    except Damaged as error:
        return [str(error)]
    if manifest is None:
        return [f"{folder / MANIFEST}: missing"]
    names, problems = _names(folder), []
    for name in [*manifest.entries, *(name for name in names if name not in manifest.entries)]:
        try:
            if (folder / name).is_symlink():
                raise Damaged(f"{folder / name}: not a plain file")
            manifest.check(name)
        except Damaged as error:
            problems.append(str(error))
    return problems


def files_of(folder: Path) -> list[str]:
    """Returns the names of the files and links below a folder, in order."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())


def _names(folder: Path) -> list[str]:
    return [name for name in files_of(folder) if name not in (MANIFEST, CARD) and not Path(name).name.startswith(".")]


def _entry(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    return {"bytes": size, "sha256": _digest(path)} if size <= BLOCK else {"bytes": size, "blocks": _digest_of_blocks(path, size)}


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of_blocks(path: Path, size: int) -> str:
    """The sha256 of the sha256 of each block: blocks are hashed at once, on as many cores as there are."""

    def block(start: int) -> bytes:
        digest, left = hashlib.sha256(), min(BLOCK, size - start)
        with open(path, "rb") as file:
            file.seek(start)
            while piece := file.read(min(left, 1 << 20)):
                digest.update(piece)
                left -= len(piece)
        return digest.digest()

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        return hashlib.sha256(b"".join(pool.map(block, range(0, size, BLOCK)))).hexdigest()


def _canonical(entries: Mapping[str, Any]) -> str:
    return json.dumps({"files": entries}, indent=1) + "\n"
