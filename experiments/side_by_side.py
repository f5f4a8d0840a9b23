"""Many runs side by side on one device, each result one line of a JSON-lines file.

Runs that are in the file already are left out; no run begins that would, by the longest of its kind so far, not end in time.
Where a study takes --unfinished FOLDER, a training that has not ended by then is saved there and the next call goes on with it; so
is one that has ended and was not measured in time. Without the folder it is lost.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from experiments.thin import rounded, thin
from experiments.trained import Stopped, resumptions

if TYPE_CHECKING:
    from loopwright.evaluation.text import HeldOut


# seconds before the time is up when trainings that can go on are asked to stop. They end an update and save: 0.9 GB took 6 s on two
# busy cores, and several save at once; those that do not get ready are lost
GRACE = 30.0
# what a row hangs on beside the package: the studies, without what is written of them
CODE = (":(top)experiments", *(f":(top,exclude)experiments/{name}" for name in ("results", "readme", "LOG.md")))


class Run(Protocol):
    """One piece of work. `name` is its own; `kind` is shared by those that take about as long."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...


def made_by(kept: Path | None = None) -> dict[str, Any]:
    """Returns where a row was made: versions, commit, devices, time; not the command, which names the machine's folders. Of a
    training that went on in its folder `kept` also where: see `resumptions`. A study whose own code is not that of the commit says
    `changed` too."""
    from loopwright.storage.run import origin

    return {key: value for key, value in origin(code=CODE).items() if key != "command"} | resumptions(kept)


def as_line(result: Mapping[str, Any]) -> str:
    """Returns a result as one line of JSON without spaces, and no more of it than is kept: rows come with every clone."""
    return json.dumps(thin(result), separators=(",", ":"))


def compared(held: Mapping[str, Any], depths: Sequence[int]) -> dict[str, Any]:
    """Returns held-out losses as plain data, with those of single passages at these depths alone, where models are compared."""
    if not set(depths) & set(held["depth"]):
        return {name: value for name, value in held.items() if name not in ("losses", "document_of", "targets_of")}
    losses = [losses if depth in depths else [] for depth, losses in zip(held["depth"], held["losses"], strict=True)]
    return {**held, "losses": losses}


def folded(report: HeldOut, digits: int = 5) -> dict[str, Any]:
    """Returns a report with the passages of a document as one: intervals over documents stay what they are, but for rounding."""
    documents = sorted(set(report.document_of))
    sums = [[0.0] * len(documents) for _ in report.losses]
    targets = [0] * len(documents)
    for passage, document in enumerate(report.document_of):
        place = documents.index(document)
        targets[place] += report.targets_of[passage]
        for own, losses in zip(sums, report.losses, strict=True):
            own[place] += losses[passage] if losses[passage] is not None else float("nan")
    whole = replace(report, document_of=tuple(documents), targets_of=tuple(targets), losses=tuple(map(tuple, sums)))
    return asdict(whole) | {"losses": rounded(sums, digits)}


def run_all(
    runs: Sequence[Run], work: Callable[..., dict[str, Any]], out: str, *, workers: int, seconds: float,
    begin: Callable[[], None] | None = None, counts: Callable[[dict[str, Any]], bool] = bool, unfinished: Path | None = None,
) -> None:  # fmt: skip
    """Does the work of every run that is not in `out` yet, `workers` at a time, for at most `seconds`, and names those not made.

    `begin` is called once in each process. `work` and `begin` must be importable by name. A row of `out` that does not count is
    made again. Where there is a folder of `unfinished` runs, `work` is given one of its own in it as `kept`; it is removed once the
    row is written.
    """
    path, in_time = Path(out), False
    left = missing(runs, path, counts)
    if left and seconds > (GRACE if unfinished else 0):
        in_time = _share_out(left, work, out, workers=workers, seconds=seconds, begin=begin, unfinished=unfinished)
    not_made = missing(left, path, counts)  # failed, not begun, or stopped here because the time was up
    for run in not_made:
        print(f"not made: {run.name}", flush=True)
    if not_made and not in_time:
        print(f"not enough time ({max(seconds, 0):.0f} s): the same call makes the rest; --seconds gives it more", flush=True)
    print(f"{len(path.read_text().splitlines()) if path.is_file() else 0} results in {path}", flush=True)


def folder_of(name: str) -> str:
    """Returns the name of a folder for a run of any name: its letters and digits, and a digest that tells it from all others."""
    return f"{re.sub('[^A-Za-z0-9]+', '-', name)[:60]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _share_out(
    left: Sequence[Run], work: Any, out: str, *, workers: int, seconds: float, begin: Any, unfinished: Path | None
) -> bool:
    """Does the work of these runs in processes of their own, which end when the time is up. Returns whether all had the time they
    need: none was stopped, and none was not begun."""
    context = multiprocessing.get_context("spawn")
    manager = context.Manager()
    queue, lock, longest, late = manager.Queue(), manager.Lock(), manager.dict(), manager.list()
    for item in [*left, *[None] * workers]:
        queue.put(item)
    deadline = time.time() + seconds
    asked = deadline - (GRACE if unfinished else 0)
    given = (queue, out, lock, asked, longest, late, work, begin, unfinished)
    processes = [context.Process(target=_serve, args=given) for _ in range(min(workers, len(left)))]
    for process in processes:
        process.start()
    for process in processes:
        process.join(max(asked - time.time(), 0.1))
    in_time = not any(process.is_alive() for process in processes)
    for process in processes if unfinished else ():
        process.terminate()  # once: a second one would end it at once
    for process in processes:
        process.join(max(deadline - time.time(), 0.1))
    for process in processes:
        if process.is_alive():
            process.kill()
    return in_time and not len(late)


def missing(runs: Sequence[Any], path: Path, counts: Callable[[dict[str, Any]], bool] = bool) -> list[Any]:
    """Returns the runs that a file of results does not hold, or holds in rows that do not count. A broken last line is cut off."""
    done = names_of(path, counts)
    return [run for run in runs if run.name not in done]


def names_of(path: Path, counts: Callable[[dict[str, Any]], bool] = bool) -> set[str]:
    """Returns the names of the rows of a file that count, none where there is no file. A broken last line is cut off."""
    cut_broken_line(path)
    rows = map(json.loads, path.read_text().splitlines() if path.is_file() else [])
    return {row["name"] for row in rows if counts(row)}


def cut_broken_line(path: Path) -> None:
    """Cuts off a last line that is no JSON and does not end, and says so; one that only lacks its end is given it."""
    data = path.read_bytes() if path.is_file() else b""
    if not data or data.endswith(b"\n"):
        return
    last = data[data.rfind(b"\n") + 1 :]
    try:
        json.loads(last)
    except ValueError:  # a process was killed while it wrote
        begins = last[:60].decode(errors="replace")
        print(f"{path}: the last line is broken (its writer was killed?) and left out: {begins} …", flush=True)
        os.truncate(path, len(data) - len(last))
    else:
        with open(path, "a") as file:
            file.write("\n")


def add_line(path: Path, line: str) -> None:
    """Adds a row to a file on a line of its own, also where another process was killed while it wrote one."""
    cut_broken_line(path)
    with open(path, "a") as file:
        file.write(line + "\n")


def _device_answers(tries: int = 3, wait: float = 2.0) -> bool:
    """Returns whether the GPU, where there is one, takes this process: many that begin at once may find it busy."""
    import torch

    for _ in range(tries if torch.cuda.is_available() else 0):
        try:
            torch.zeros(1, device="cuda")
        except RuntimeError:
            time.sleep(wait)
        else:
            return True
    return not torch.cuda.is_available()


def _serve(
    queue: Any, out: str, lock: Any, deadline: float, longest: Any, late: Any, work: Any, begin: Any, unfinished: Path | None = None
) -> None:
    """Takes runs from the queue until it is empty or the time is up; those that it does not begin are `late`."""
    if unfinished:
        signal.signal(signal.SIGTERM, lambda *_: None)  # trainings answer it by a save; what is measured then may still end in time
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    import torch

    torch.set_num_threads(1)
    if not _device_answers():  # every run would fail here in no time, and none would be left for the other processes
        print("a process has no device, and leaves its runs to the others", flush=True)
        return
    if begin is not None:
        begin()
    while (run := queue.get()) is not None:
        kept = {"kept": unfinished / folder_of(run.name)} if unfinished else {}
        if time.time() + (0.0 if kept else longest.get(run.kind, 0.0)) > deadline:
            print(f"not begun, no time: {run.name}", flush=True)
            late.append(run.name)
            continue
        began = time.time()
        try:
            line = as_line(work(run, **kept))
        except Stopped as stopped:
            print(f"{run.name}: {stopped}", flush=True)
            continue
        except Exception as error:  # one bad run must not take the others with it
            print(f"FAILED {run.name}: {type(error).__name__}: {error}", flush=True)
            continue
        finally:
            torch._dynamo.reset()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        taken = time.time() - began
        longest[run.kind] = max(longest.get(run.kind, 0.0), taken)
        with lock:
            add_line(Path(out), line)
        for folder in kept.values():  # no earlier: what is trained and not in a row yet is measured by the next call
            shutil.rmtree(folder, ignore_errors=True)
        print(f"{taken:6.1f} s  {run.name}", flush=True)
