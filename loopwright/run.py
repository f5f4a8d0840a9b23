"""The run folder: its paths, its checkpoints, the lock, and where a run came from."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from loopwright.storage.folder import REPLACED, clear_leftovers
from loopwright.untrusted import user_path
from loopwright.version import VERSION

STATE = "state.json"  # of a checkpoint: how far the run was
_CHECKPOINT = re.compile(rf"(\d{{8,}})({re.escape(REPLACED)})?")


class RunFolder:
    """The folder of one run, and where its files lie."""

    def __init__(self, path: str | Path) -> None:
        self.path = user_path(path)
        self.recipe = self.path / "recipe.yaml"  # resolved
        self.origin = self.path / "origin.json"  # versions, commit, devices, command
        self.log = self.path / "log.jsonl"
        self.checkpoints = self.path / "checkpoints"  # one folder per saved update
        self.eval = self.path / "eval"
        self.traces = self.path / "traces"
        self.metrics = self.path / "metrics"
        self.figures = self.path / "figures"
        self.report = self.path / "report.html"

    @property
    def begun(self) -> bool:
        """Whether a run has written here: what stands in the folder is then the run's, not its reader's own."""
        return any(path.exists() for path in (self.origin, self.log, self.checkpoints))

    @contextmanager
    def locked(self) -> Iterator[RunFolder]:
        """Makes the folder, holds it for this process alone, clears what killed writes left, and gives it back. Where nothing but
        locks was written into it, the lock goes again, and the folder if it was made here.

        The operating system holds the lock for the process, so that it ends with the process, however that ends.
        """
        import fcntl  # not there on every system; reading a run does not need it

        new, lock = not self.path.exists(), self.path / ".lock"
        self.path.mkdir(parents=True, exist_ok=True)
        with open(lock, "a+") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.path.samestat(os.fstat(file.fileno()), os.stat(lock)):  # it went, and another came, since it was opened
                    raise BlockingIOError
            except (BlockingIOError, PermissionError, FileNotFoundError):
                file.seek(0)
                holder = file.read(200).strip() or "another process"
                raise ValueError(f"{self.path}: {holder} is training into this run folder; allowed: one process") from None
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}")
            file.flush()
            clear_leftovers(self.path)
            try:
                yield self
            finally:
                files = [path.name for path in self.path.rglob("*") if not path.is_dir()]
                if new and all(name.startswith(".") and name.endswith(".lock") for name in files):  # data has such locks too
                    shutil.rmtree(self.path, ignore_errors=True)
                elif files == [lock.name]:
                    lock.unlink(missing_ok=True)


def saved(checkpoints: str | Path) -> list[Path]:
    """Returns the folders of all checkpoints, newest first, whole or not."""
    folder = Path(checkpoints)
    folders = [path for path in folder.iterdir() if _CHECKPOINT.fullmatch(path.name)] if folder.is_dir() else []
    # one that was being replaced counts after the one that replaced it
    return sorted(folders, key=lambda path: (-update_of(path), path.suffix))


def update_of(folder: Path) -> int:
    """Returns the number of updates that a checkpoint's folder is named after, -1 for another folder."""
    match = _CHECKPOINT.fullmatch(folder.name)
    return int(match[1]) if match else -1


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
    """The commit of the checkout that the package is tracked in, and whether the package differs from it.

    Of an archive (`git archive`) the commit it was made of; what changed since is not known there.
    """

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(package), *words], capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # installed into an environment that happens to lie in somebody's checkout, it is tracked by nobody
    tracked = git("ls-files", "--error-unmatch", "version.py") is not None
    archived = package / "archived.txt"
    commit = git("rev-parse", "HEAD") if tracked else archived.read_text().strip() if archived.exists() else None
    if commit is None or not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        return {"commit": None, "changed": None}
    return {"commit": commit, "changed": git("status", "--porcelain", "--", ".") != "" if tracked else None}
