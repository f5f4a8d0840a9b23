"""Opens what was packed and runs the commands of an item, until they end or the time is up; new rows are put by as they come."""

from __future__ import annotations

import gzip
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from experiments.elsewhere.plan import RUN, Command, Item
from experiments.sft.parts import join
from loopwright.storage.files import write_whole

RESULTS = Path(__file__).parents[1] / "results"
OPENED = "opened"  # a file that says what was
# seconds between the end of the runs, by when trainings have saved themselves, and that of their programs; between two looks at new
# rows
SPARE, LOOK = 10.0, 5.0


def prepare(needs: str, parts: Sequence[Path], place: Path) -> None:
    """Opens the parts, unless that was done before: the same pack may serve several items. A place holds one pack: the texts of
    two would be mixed."""
    place.mkdir(parents=True, exist_ok=True)
    if not needs:
        return
    if (place / OPENED).is_file():
        opened = (place / OPENED).read_text()
        if opened != needs:
            raise ValueError(f"place: {place} holds what was packed as {opened}, and {needs} is needed; give another --place")
        return
    if not parts:
        raise ValueError(f"run: no --parts; give those that `pack` made of {needs}, or the --place where they were opened")
    join(parts, place)
    with ThreadPoolExecutor() as pool:
        list(pool.map(compress, place.glob("corpus/*.jsonl")))
    (place / OPENED).write_text(needs)


def compress(path: Path) -> None:
    """Compresses a file as runs expect it: parts hold texts as they are."""
    with gzip.open(f"{path}.gz", "wb", compresslevel=1) as file:
        file.write(path.read_bytes())
    path.unlink()


@dataclass
class Running:
    """A command that was begun, with its file of rows, of which the first `known` were there before."""

    command: Command
    process: subprocess.Popen[bytes]
    file: Path
    known: int
    ended: bool = False

    def new(self) -> list[str]:
        """Returns the rows that are new and whole."""
        return whole_lines(self.file)[self.known :]

    def over(self) -> bool:
        """Returns whether the program has ended. What it left running ends too: it would keep its share of the GPU."""
        if self.process.poll() is not None:
            self.end()
        return self.ended

    def end(self) -> None:
        """Ends the program and all that it began, once: later its number may be another's."""
        if not self.ended:
            with suppress(ProcessLookupError):  # nothing is left of them
                os.killpg(self.process.pid, signal.SIGKILL)
        self.ended = True


def whole_lines(path: Path) -> list[str]:
    """Returns the lines of a file that end; the last one of a program that was stopped, or still writes, may not."""
    lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
    return [line for line in lines if line.endswith("\n")]


def run(item: Item, place: Path, out: Path, ends: float, changes: Sequence[str] = ()) -> bool:
    """Runs the steps of an item, and returns whether every command ended well. New rows go to OUT/NAME.jsonl, after those that an
    earlier call left there, which are not made again."""
    out.mkdir(parents=True, exist_ok=True)
    earlier = {path.stem: whole_lines(path) for path in out.glob("*.jsonl")}
    if shutil.which("nvidia-cuda-mps-control"):  # many processes then share the GPU; one that runs already is left alone
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=False)
    rows = Path(tempfile.mkdtemp(prefix="rows-", dir=place))  # items may run side by side on the same parts
    done: list[Running] = []
    for step in item.steps:
        if time.time() >= ends:
            print(f"not begun, no time: {step[0].words}", flush=True)
            break
        before, began = [*done], []
        try:
            for command in step:
                file, come = rows / f"{len(done)}.jsonl", [*earlier.get(command.rows, [])]
                come += [line for each in before if each.command.rows == command.rows for line in each.new()]
                began.append(begin(command, file, place, ends, changes, len(step), come))
                done.append(began[-1])
            while time.time() < ends and sum(each.over() for each in began) < len(began):
                time.sleep(min(LOOK, max(ends - time.time(), 0.0)))
                collect(done, out, earlier)
        finally:
            for each in began:
                each.end()
            collect(done, out, earlier)
    if item.folder and (place / item.folder).is_dir():
        with tarfile.open(out / f"{item.folder}.tar.gz", "w:gz") as archive:
            archive.add(place / item.folder, item.folder)
    for each in done:
        print(f"ended with {each.process.wait()}, {len(each.new())} new rows: {each.command.words}", flush=True)
    return len(done) == sum(map(len, item.steps)) and all(each.process.returncode == 0 for each in done)


def begin(
    command: Command, file: Path, place: Path, ends: float, changes: Sequence[str], beside: int, come: Sequence[str]
) -> Running:
    """Begins a command, on from the rows there are of its study, those that have come since with them."""
    rows = [*whole_lines(RESULTS / command.start), *come]
    file.write_text("".join(rows))
    given = {"place": place, "rows": file, "seconds": f"{max(ends - time.time() - SPARE, 1):.0f}"}
    words = [word.format_map(given) for word in shlex.split(command.words)]  # in this order: a path may hold blanks
    if RUN in command.words:
        words += [word for change in changes for word in ("--change", change)]
    threads = max((os.cpu_count() or 1) // beside, 1)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen([sys.executable, *words], env=environment, start_new_session=True)
    return Running(command, process, file, len(rows))


def collect(running: Sequence[Running], out: Path, earlier: Mapping[str, Sequence[str]]) -> None:
    """Writes the new rows of all commands, by the name that they come back under; a kill or a full disk leaves those of before."""
    for name in {each.command.rows for each in running if each.command.rows}:
        lines = [line for each in running if each.command.rows == name for line in each.new()]
        write_whole(out / f"{name}.jsonl", "".join([*earlier.get(name, []), *lines]))
