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
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from loopwright.storage.files import read_json
from loopwright.storage.folder import REPLACED, check_out, clear_leftovers
from loopwright.untrusted import user_path
from loopwright.version import VERSION

STATE = "state.json"  # of a checkpoint: how far the run was
MADE = "made.json"  # how long the log was and its sha256, and what the run was made with; times in the log make it differ each time
RESULTS = {"report.html", "traces-dense", "bench.json", "bench.svg"}  # what verbs write beside what has a name in a run folder
ANEW = "anew"  # how states that are drawn began in training; older versions drew one start for all rows, and did not say so
_CHECKPOINT = re.compile(rf"(\d{{8,}})({re.escape(REPLACED)})?")
_held: set[tuple[int, Path]] = set()  # (process, run folder): a process may take a lock of the operating system twice


class RunFolder:
    """The folder of one run, and where its files lie."""

    def __init__(self, path: str | Path) -> None:
        self.path = user_path(path)
        self.recipe = self.path / "recipe.yaml"  # resolved
        self.origin = self.path / "origin.json"  # versions, commit, devices, command
        self.log = self.path / "log.jsonl"
        self.tracking = self.path / "tracking.json"  # what trackers call the run
        self.tracked = (self.path / "tensorboard", self.path / "wandb")  # what trackers write here
        self.data = self.path / "data"  # token shards
        self.checkpoints = self.path / "checkpoints"  # one folder per saved update
        self.eval = self.path / "eval"
        self.traces = self.path / "traces"
        self.metrics = self.path / "metrics"
        self.figures = self.path / "figures"

    def check_out(self, verb: str) -> None:
        """Raises a ValueError where a verb must not write: above the working directory, or among files of others. The folder of
        a run or a model may hold more that its owner put there."""
        known = {path.name for path in vars(self).values() if isinstance(path, Path)} | {path.name for path in self.tracked}
        ours = self.holds_run or says(self.path / "config.json", "model_type")
        check_out(verb, self.path, None if ours else known | RESULTS, "one of a run, a model or results")

    @property
    def holds_run(self) -> bool:
        """Whether a run wrote here. Every start writes origin.json first and removes it last."""
        return says(self.origin, "loopwright")

    @property
    def begun(self) -> bool:
        """Whether a run has written here: what stands in the folder is then the run's, not its reader's own."""
        return any(path.exists() for path in (self.origin, self.log, self.checkpoints))

    @property
    def holds_updates(self) -> bool:
        """Whether a run has come further than its start: an update is in its log, or saved."""
        return self.holds_checkpoints or (self.log.is_file() and self.log.stat().st_size > 0)

    @property
    def holds_checkpoints(self) -> bool:
        """Whether anything is saved, whole or not. An empty folder may be the user's: a link to a larger disk, say."""
        return self.checkpoints.is_dir() and any(self.checkpoints.iterdir())

    @property
    def not_ours(self) -> Path | None:
        """Returns a file that has the name of one of a run's and that no run wrote, None where there is none: a start would write
        over it."""
        if self.holds_run:
            return None
        names = [self.recipe, self.origin, self.log, self.tracking]
        if self.holds_checkpoints or not self.checkpoints.is_dir():
            names.append(self.checkpoints)
        return next((path for path in names if os.path.lexists(path)), None)

    def check_free(self) -> None:
        """Refuses a folder that holds a run, files that no run wrote under a run's names, or a model: where a folder holds both,
        its name stands for the run, and nobody would find the model again."""
        if self.recipe.is_file() and self.holds_updates:
            raise ValueError(f"train: {self.path} already holds a run; --resume continues it, --out names another folder")
        if self.holds_updates or self.not_ours is not None:
            path = self.not_ours or (self.checkpoints if self.holds_checkpoints else self.log)
            raise ValueError(f"train: {path} is there, and a run would write over it; move it away, or --out names another folder")
        if (self.path / "config.json").exists():
            raise ValueError(f"train: {self.path} holds a model (config.json), which a run would hide; --out names another folder")

    @contextmanager
    def locked(self) -> Iterator[RunFolder]:
        """Makes the folder, holds it for this process alone, clears what killed writes left, and gives it back. Where no update
        was made, what was written and made here goes again, but for token shards: the next start reads them.

        The operating system holds the lock for the process, so that it ends with the process, however that ends.
        """
        holder = os.getpid(), self.path.resolve()
        if holder in _held:
            raise ValueError(f"{self.path}: this process is training into this run folder already; allowed: one run at a time")
        _held.add(holder)
        try:
            with self._locked():
                yield self
        finally:
            _held.discard(holder)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        import fcntl  # not there on every system; reading a run does not need it

        lock = self.path / ".lock"
        file, made = self._open(lock)
        with file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.path.samestat(os.fstat(file.fileno()), os.stat(lock)):  # it went, and another came, since it was opened
                    raise BlockingIOError
            except (BlockingIOError, PermissionError, FileNotFoundError):
                file.seek(0)
                holder = file.read(200).strip() or "another process"
                raise ValueError(f"{self.path}: {holder} is training into this run folder; allowed: one process") from None
            file.seek(0)
            if not re.match(r"process \d+|$", file.read(200)):
                raise ValueError(f"{lock}: is there, and no run wrote it; move it away, or train into another folder")
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}")
            file.flush()
            clear_leftovers(self.path)
            written = (self.recipe, self.log, self.tracking, *self.tracked, self.origin)
            new = [path for path in written if not os.path.lexists(path)]
            try:
                yield
            finally:
                if not self.holds_updates:
                    self._undo(new, made, lock)

    def _open(self, lock: Path, *, again: bool = True) -> tuple[IO[str], list[Path]]:
        """Opens the lock; returns it with the folders that were not there, inner ones first."""
        # os.path: what Path cannot ask about (a name that is too long, a closed folder) it raises, and `mkdir` tells it better
        made = [path for path in (self.data, self.checkpoints, self.path, *self.path.parents) if not os.path.exists(path)]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            return open(lock, "a+", errors="replace"), made
        except FileNotFoundError as error:  # another start that failed took the folder away in between
            if again:
                return self._open(lock, again=False)
            raise _not_writable(self.path, error) from None
        except OSError as error:
            raise _not_writable(self.path, error) from None

    def _undo(self, new: Sequence[Path], folders: Sequence[Path], lock: Path) -> None:
        """Removes what a start wrote, and those folders that nothing of worth is left in; the user may have put something there.
        The lock goes when only empty folders are left to remove: from then on another start may write here."""
        for path in new:
            if path in self.tracked and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
                continue
            with suppress(OSError):  # it is not there; and what went wrong before matters more than what cannot be removed
                path.unlink()
        locks_alone = all(path.is_dir() or re.fullmatch(r"\..*\.lock", path.name) for path in self.data.rglob("*"))
        if self.data in folders and locks_alone:
            shutil.rmtree(self.data, ignore_errors=True)
        with suppress(OSError):
            lock.unlink()
        for folder in folders:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def says(file: Path, name: str) -> bool:
    """Returns whether a JSON file is there and holds an object with this name."""
    with suppress(OSError, ValueError):
        return name in read_json(file)
    return False


def _not_writable(folder: Path, error: OSError) -> OSError:
    """Returns the error of a run folder that cannot be made or written, in words that say what to change."""
    there = next((path for path in (folder.absolute(), *folder.absolute().parents) if os.path.exists(path)), folder)
    reason = f"{there} is a file" if os.path.isfile(there) else (error.strerror or str(error)).lower()
    return type(error)(f"out: cannot write into {folder} ({reason}); give another folder")


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


def origin(command: Sequence[str] | None = None, code: Sequence[str] = ()) -> dict[str, Any]:
    """Returns what a run should remember of where it was made: versions, commit, devices, command, time.

    `code` names what else must be as in that commit (pathspecs of git), so that `changed` is false.
    """
    import torch

    packages = ("transformers", "accelerate", "safetensors", "numpy")
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    return {
        "loopwright": VERSION,
        **_commit(Path(__file__).parents[1], code),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        **{name: metadata.version(name) for name in packages},
        "platform": platform.platform(),
        "devices": [torch.cuda.get_device_name(index) for index in cuda] or [f"cpu ({os.cpu_count()} cores)"],
        "command": shlex.join(sys.argv if command is None else command),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _commit(package: Path, code: Sequence[str] = ()) -> dict[str, Any]:
    """The commit of the checkout that the package is tracked in, and whether the package, or other `code`, differs from it.

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
    return {"commit": commit, "changed": git("status", "--porcelain", "--", ".", *code) != "" if tracked else None}
