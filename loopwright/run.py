"""The run folder: its paths, whole writes, manifests, the log, the lock, and where a run came from.

A file or folder is written beside its place, brought to the disk, and renamed: whoever looks finds the old one or the new one,
never a part. A manifest holds the size and sha256 of each file of a folder, so that what changed later is found and named.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from loopwright.version import VERSION

MANIFEST = "manifest.json"
# what a clock decides: the only entries in which the log of a resumed run differs from that of an uninterrupted one
TIMING_KEYS = ("seconds", "targets_per_second", "tokens_per_second", "time")
# plain files of ours are far smaller; what is larger is not read at all
_JSON_BYTES = 64 * 2**20


class DiskFull(OSError):  # noqa: N818  (it is what happened; the message says the rest)
    """There is no room for what was to be written; what stood there before is unharmed."""


class RunFolder:
    """The folder of one run, and where its files lie."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self.recipe = self.path / "recipe.yaml"  # resolved
        self.origin = self.path / "origin.json"  # versions, commit, devices, command
        self.log = self.path / "log.jsonl"
        self.checkpoints = self.path / "checkpoints"  # one folder per saved update
        self.eval = self.path / "eval"
        self.traces = self.path / "traces"
        self.metrics = self.path / "metrics"
        self.figures = self.path / "figures"
        self.report = self.path / "report.html"

    @contextmanager
    def locked(self) -> Iterator[RunFolder]:
        """Makes the folder, holds it for this process alone, clears what killed writes left, and gives it back.

        The operating system holds the lock for the process, so that it ends with the process, however that ends.
        """
        import fcntl  # not there on every system; reading a run does not need it

        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / ".lock", "a+") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                file.seek(0)
                holder = file.read(200).strip() or "another process"
                raise ValueError(f"{self.path}: {holder} is training into this run folder; allowed: one process") from None
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}")
            file.flush()
            clear_leftovers(self.path)
            yield self


# whole writes


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Writes a file so that it is there whole, and on the disk, or as it was before."""
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    made = _beside(path)
    with clear_when_full(path, len(data), "what stood there is unharmed"):
        try:
            with open(made, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(made, path)
        finally:
            made.unlink(missing_ok=True)
    _sync(path.parent)


def write_json(path: str | Path, data: Any) -> None:
    """Writes plain data as a whole JSON file; what JSON cannot hold (a number that is not finite, too) is refused."""
    try:
        text = json.dumps(data, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: not plain data ({error}); allowed: text, finite numbers, lists, mappings") from None
    write_whole(path, text + "\n")


@contextmanager
def whole_folder(target: str | Path, *, needed: int, kept: str) -> Iterator[Path]:
    """Gives an empty folder to write `needed` bytes into; when the block ends well it stands at `target`, with a manifest.

    `kept` says, for the message that the disk is full, what is unharmed. A folder that stood at `target` is replaced; where
    the process is killed between the two renames it is found as `target.replaced`.
    """
    target = Path(target)
    made = _beside(target)
    with clear_when_full(target, needed, kept):
        _check_room(target, needed, kept)
        made.mkdir(parents=True)
        try:
            yield made
            share(made)
            write_manifest(made)
            _sync_tree(made)
            _put(made, target)
        finally:
            shutil.rmtree(made, ignore_errors=True)


def share(folder: Path) -> None:
    """Lets whoever may read the folder read its files: safetensors writes them for their owner alone."""
    mode = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode)


def _put(made: Path, target: Path) -> None:
    old = target.with_name(f"{target.name}.replaced")
    if target.exists():
        remove_folder(old)
        os.rename(target, old)
    try:
        os.rename(made, target)
    except OSError:
        if old.exists():
            os.rename(old, target)
        raise
    _sync(target.parent)
    remove_folder(old)


def remove_folder(folder: Path) -> None:
    """Removes a folder if it is there; nobody ever finds a part of it under its name."""
    if folder.exists():
        aside = _beside(folder)
        os.rename(folder, aside)
        shutil.rmtree(aside, ignore_errors=True)


def clear_leftovers(folder: Path) -> None:
    """Removes what writes and removals that were killed left in a folder. Only for whoever alone writes there."""
    for entry in folder.glob(".*.tmp") if folder.is_dir() else ():
        shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)


@contextmanager
def clear_when_full(path: Path, needed: int, kept: str) -> Iterator[None]:
    """Turns the ways in which writing fails for want of room into one DiskFull that says what, where and what is unharmed."""
    try:
        yield
    except DiskFull:
        raise
    except Exception as error:
        # safetensors reports the system's error in words
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or f"(os error {errno.ENOSPC})" in str(error)
        if not full:
            raise
        raise DiskFull(f"{path}: the disk is full ({_in_words(needed)} were to be written); {kept}") from None


def _check_room(target: Path, needed: int, kept: str) -> None:
    there = next(parent for parent in (target, *target.parents, Path.cwd()) if parent.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise DiskFull(f"{target}: the disk is full ({_in_words(needed)} needed, {_in_words(free)} free); {kept}")


def _in_words(size: int) -> str:
    power = min(4, max(0, int(math.log(max(size, 1), 1000))))
    return f"{size / 1000**power:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


def _sync_tree(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# manifests


def write_manifest(folder: str | Path) -> None:
    """Writes the size and sha256 of each file of a folder into its manifest.json."""
    folder = Path(folder)
    entries = {name: _entry(folder / name) for name in _names(folder)}
    write_whole(folder / MANIFEST, _canonical(entries))


def verify(folder: str | Path) -> list[str]:
    """Returns what is wrong with a folder by its manifest: nothing where each file is as it was written.

    Files whose name begins with a dot are the file system's business.
    """
    folder = Path(folder)
    try:
        data = read_json(folder / MANIFEST)
        text = (folder / MANIFEST).read_bytes()
    except (OSError, ValueError) as error:
        return [str(error)]
    wanted = data.get("files")
    # byte for byte what was written, so that every change is a changed name, size or sum, which the files contradict
    if not isinstance(wanted, dict) or _canonical(wanted).encode() != text:
        return [f"{folder / MANIFEST}: not in the form in which it was written"]
    found = _names(folder)
    problems = [f"{folder / name}: missing" for name in wanted if name not in found]
    problems += [f"{folder / name}: not in the manifest" for name in found if name not in wanted]
    for name in (name for name in wanted if name in found):
        path, entry = folder / name, wanted[name]
        if path.is_symlink() or not path.is_file():
            problems.append(f"{path}: not a plain file")
            continue
        size = path.stat().st_size
        if not isinstance(entry, dict) or size != entry.get("bytes"):
            stated = entry.get("bytes") if isinstance(entry, dict) else entry
            problems.append(f"{path}: {size} bytes where the manifest says {stated}")
        elif _entry(path) != entry:
            problems.append(f"{path}: its content changed (sha256 differs)")
    return problems


def read_json(path: str | Path) -> dict[str, Any]:
    """Returns the object in a JSON file, or says in one line why there is none."""
    path = Path(path)
    if path.is_symlink() or not path.is_file():
        raise FileNotFoundError(f"{path}: missing")
    if path.stat().st_size > _JSON_BYTES:
        raise ValueError(f"{path}: {_in_words(path.stat().st_size)}; allowed: at most {_in_words(_JSON_BYTES)}")
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not readable as JSON ({str(error).splitlines()[0]})") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path}: holds a {type(data).__name__}; allowed: a JSON object")
    return data


def _names(folder: Path) -> list[str]:
    paths = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    names = sorted(path.relative_to(folder).as_posix() for path in paths if not path.name.startswith("."))
    return [name for name in names if name != MANIFEST]


def _entry(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _canonical(entries: Mapping[str, Any]) -> str:
    return json.dumps({"files": entries}, indent=1) + "\n"


# the log


class Log:
    """A file of JSON lines that only grows: one row a line, each on its way to the disk before the next is made.

    A row's "update" is the update it belongs to, from 0. Opened for a run that goes on after `updates` of them, the rows of
    later updates and a torn last line are cut off, so that the log of a killed and resumed run is that of an uninterrupted
    one (TIMING_KEYS apart): whoever saves writes the rows of an update before its checkpoint.
    """

    def __init__(self, path: str | Path, *, updates: int = 0) -> None:
        self.path = Path(path)
        self._file: IO[bytes] = open(self.path, "ab")  # noqa: SIM115  (open as long as the run)
        self._file.truncate(_length_before(self.path, updates))

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends one row; a number that is not finite is written as null, since JSON has no word for it."""
        line = json.dumps(_finite(row), allow_nan=False, separators=(", ", ": ")) + "\n"
        with clear_when_full(self.path, len(line), "the checkpoints are unharmed"):
            self._file.write(line.encode())
            self._file.flush()

    def sync(self) -> None:
        """Returns when every row is on the disk: what a checkpoint waits for."""
        with clear_when_full(self.path, 0, "the checkpoints are unharmed"):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Brings the rows to the disk and closes the file."""
        try:
            self.sync()
        finally:
            self._file.close()


def read_log(path: str | Path) -> list[dict[str, Any]]:
    """Returns the rows of a log; a torn last line, of a run that was killed or still writes, is left out."""
    return [row for row, _, _ in _rows(Path(path))]


def untimed(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row without what a clock decided."""
    return {key: value for key, value in row.items() if key not in TIMING_KEYS}


def _rows(path: Path) -> Iterator[tuple[dict[str, Any], int, int]]:
    """Yields each row, and where its line begins and ends."""
    end = 0
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: not a JSON object; the log is damaged (move it away to go on without it)")
        begin, end = end, end + len(line) + 1
        yield row, begin, end


def _length_before(path: Path, updates: int) -> int:
    end = 0
    for row, begin, end in _rows(path):  # noqa: B007  (the last end is wanted)
        if row.get("update", -1) >= updates:
            return begin
    return end


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# where a run came from


def origin(command: Sequence[str] | None = None) -> dict[str, Any]:
    """Returns what a run should remember of where it was made: versions, commit, devices, command, time."""
    import torch

    packages = ("transformers", "accelerate", "safetensors", "numpy")
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    return {
        "loopwright": VERSION,
        **_commit(Path(__file__).parent),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        **{name: metadata.version(name) for name in packages},
        "platform": platform.platform(),
        "devices": [torch.cuda.get_device_name(index) for index in cuda] or [f"cpu ({os.cpu_count()} cores)"],
        "command": shlex.join(sys.argv if command is None else command),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _commit(package: Path) -> dict[str, Any]:
    """The commit of the checkout that the package is tracked in, and whether the package differs from it."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(package), *words], capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # installed into an environment that happens to lie in somebody's checkout, it is tracked by nobody
    commit = git("rev-parse", "HEAD") if git("ls-files", "--error-unmatch", "version.py") is not None else None
    if commit is None or not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        return {"commit": None, "changed": None}
    return {"commit": commit, "changed": git("status", "--porcelain", "--", ".") != ""}
