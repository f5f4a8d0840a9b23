"""Folders that are written whole: made beside their place and exchanged with what stands there in one step.

Whoever looks, and whoever comes after a kill, finds the old folder or the new one, never a part of either.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loopwright.storage.files import beside, check_room, clear_when_full, sync
from loopwright.storage.manifest import MANIFEST, Damaged, Manifest, entries_of, write_entries
from loopwright.untrusted import shown, user_path

REPLACED = ".replaced"
_EXCHANGE, _HERE = 2, -100  # RENAME_EXCHANGE and AT_FDCWD of Linux
_LEFTOVER = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")  # as `beside` names them; another .tmp is somebody else's


@contextmanager
def whole_folder(target: str | Path, *, needed: int, kept: str, carry: Callable[[str], bool] | None = None) -> Iterator[Path]:
    """Gives an empty folder to write `needed` bytes into; when the block ends well it stands at `target`, with a manifest.

    `kept` says, for the message that the disk is full, what is unharmed. A folder that stood at `target` is replaced in one
    exchange, so that a kill at any moment leaves the old one or the new one; what it held under names that `carry` allows
    stands in the new one too. Where the system cannot exchange folders, a kill may leave the old one as `target.replaced`:
    `settled` finds it there, and the next write puts it back.
    """
    target = Path(target)
    with clear_when_full(target, needed, kept):
        check_room(target, needed, kept)
        target.parent.mkdir(parents=True, exist_ok=True)
        _recover(target)
        with temporary_folder(target) as temporary:
            yield temporary
            share(temporary)
            entries = entries_of(temporary)
            if carry is not None:
                entries |= _carried(target, temporary, carry)
            write_entries(temporary, entries)
            _sync_tree(temporary)
            _put(temporary, target)


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """Gives an empty folder beside `target`, held by this process until the block ends, when it is removed if still there.

    What processes that were killed left of theirs is removed first: nobody holds it.
    """
    for path in target.parent.glob(f".{target.name}.*.tmp"):
        if _LEFTOVER.fullmatch(path.name) and _in_use(path) is False:
            shutil.rmtree(path, ignore_errors=True)
    temporary, handle = _begin(target)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if handle is not None:
            os.close(handle)


def check_out(verb: str, folder: str | Path, ours: Collection[str] | None, what: str) -> Path:
    """Returns the whole path of a folder that a verb is to write into; nothing is written yet.

    Refused are the root, a folder that holds the working directory, a file, and a folder with files under other names than `ours`
    (None: the caller judges what it holds); `what` names what may stand there. Names that begin with a dot are the file system's.
    """
    place, allowed = user_path(folder).resolve(), f"allowed: a new folder, an empty one, or {what}"
    if place in (here := Path.cwd().resolve()).parents or place == place.parent:
        reason = "the root of the file system" if place == place.parent else f"above the working directory ({here})"
        raise ValueError(f"{verb}: {folder} is {reason}; {allowed}")
    if place.exists() and not place.is_dir():
        raise ValueError(f"{verb}: {folder} is a file; {allowed}")
    there = sorted(path.name for path in place.iterdir()) if ours is not None and place.is_dir() else []
    other = next((name for name in there if not name.startswith(".") and name not in (ours or ())), None)
    if other is not None:
        raise ValueError(f"{verb}: {folder} holds other files ({shown(other)[1:-1]}); {allowed}")
    return place


def settled(target: Path) -> Path:
    """Returns where a folder stands: at its place, or beside it if the process that was replacing it was killed."""
    old = target.with_name(f"{target.name}{REPLACED}") if target.name else target
    return old if not target.exists() and old.is_dir() else target


def share(folder: Path) -> None:
    """Lets whoever may read the folder read its files: safetensors writes them for their owner alone."""
    mode = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode)


def remove_folder(folder: Path) -> None:
    """Removes a folder if it is there; nobody ever finds a part of it under its name."""
    if folder.exists():
        aside = beside(folder)
        os.rename(folder, aside)
        shutil.rmtree(aside, ignore_errors=True)


def clear_leftovers(folder: Path) -> None:
    """Removes what writes and removals that were killed left in a folder of ours; a folder that a process holds stays."""
    entries = folder.glob(".*.tmp") if folder.is_dir() else ()
    for entry in (entry for entry in entries if _LEFTOVER.fullmatch(entry.name)):
        if entry.is_symlink() or not entry.is_dir():
            entry.unlink(missing_ok=True)
        elif not _in_use(entry):
            shutil.rmtree(entry, ignore_errors=True)


def exchange(one: Path, other: Path) -> bool:
    """Lets two folders change places in one step that nothing can interrupt; returns False where the system cannot."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    if call is None:
        return False
    if call(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV):  # not on this system or its disk
        return False
    raise OSError(code, os.strerror(code), str(other))


def _put(made: Path, target: Path) -> None:
    if not target.exists():
        os.rename(made, target)
    elif not exchange(made, target):  # after which `made` is the old one
        _put_in_two(made, target)
    sync(target.parent)


def _put_in_two(made: Path, target: Path) -> None:
    old = target.with_name(f"{target.name}{REPLACED}")
    remove_folder(old)
    os.rename(target, old)
    try:
        os.rename(made, target)
    except OSError:
        os.rename(old, target)
        raise
    sync(target.parent)
    remove_folder(old)


def _recover(target: Path) -> None:
    """Ends what a process that was killed while it replaced a folder in two steps began."""
    old = target.with_name(f"{target.name}{REPLACED}")
    if old.is_dir() and target.exists():
        remove_folder(old)
    elif old.is_dir():
        os.rename(old, target)


def _carried(target: Path, made: Path, carry: Callable[[str], bool]) -> dict[str, Any]:
    """Links what stays of an old folder into the new one and returns what its manifest said of it: damage stays damage."""
    if not target.is_dir():
        return {}
    try:
        manifest = Manifest.of(target)
    except Damaged:
        manifest = None
    before = {} if manifest is None else manifest.entries
    there = [entry for entry in target.iterdir() if entry.name != MANIFEST and carry(entry.name)]
    stays = [entry for entry in there if not os.path.lexists(made / entry.name)]
    for entry in stays:
        if entry.is_dir() and not entry.is_symlink():
            shutil.copytree(entry, made / entry.name, symlinks=True, copy_function=_link)
        else:
            _link(entry, made / entry.name)
    names = {entry.name for entry in stays}
    return {name: entry for name, entry in before.items() if name.split("/")[0] in names}


def _link(source: str | Path, place: str | Path) -> None:
    try:
        os.link(source, place, follow_symlinks=False)
    except OSError:  # a disk without links
        shutil.copy2(source, place, follow_symlinks=False)


def _begin(target: Path) -> tuple[Path, int | None]:
    while True:
        temporary = beside(target)
        temporary.mkdir()
        handle = _hold(temporary)
        if handle is None or temporary.exists():  # else somebody took it for a leftover before it was held
            return temporary, handle
        os.close(handle)


def _hold(folder: Path) -> int | None:
    """The lock of a folder, which ends with the process; None where the system offers none."""
    handle, free = _try_lock(folder)
    if handle is not None and not free:  # whoever clears it away holds it: it will be gone
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def _in_use(folder: Path) -> bool | None:
    """Whether a living process holds a folder; None where the system cannot say."""
    handle, free = _try_lock(folder)
    if handle is None:
        return None
    os.close(handle)
    return not free


def _try_lock(folder: Path) -> tuple[int | None, bool]:
    """An open handle of a folder (None where the system offers no locks), and whether this process now holds its lock."""
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        return None, False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return handle, False
    except OSError:
        os.close(handle)
        return None, False
    return handle, True


def _sync_tree(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        if not path.is_symlink() and (path.is_file() or path.is_dir()):
            sync(path)
