"""What comes back from another machine: new rows alone, also of what was stopped, and nothing that goes on running."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from experiments.corpus import HELD_OUT
from experiments.elsewhere import run as runs
from experiments.elsewhere.__main__ import listed, main
from experiments.elsewhere.pack import pack
from experiments.elsewhere.plan import ITEMS, TEXT, Command, Item

ADDS = """
import json, sys
names = [json.loads(line)["name"] for line in open(sys.argv[1])]
with open(sys.argv[1], "a") as file:
    file.write(json.dumps({"name": f"{sys.argv[2]} after {' '.join(names)}"}) + "\\n")
"""
STAYS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "a").write('{"name": "made"}\\n{"name": "half')
open(sys.argv[2], "w").write(str(child.pid))
time.sleep(600)
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of results with one row, and no waiting."""
    monkeypatch.setattr(runs, "LOOK", 0.05)
    monkeypatch.setattr(runs, "RESULTS", tmp_path / "results")
    (tmp_path / "results/study").mkdir(parents=True)
    (tmp_path / "results/study/runs.jsonl").write_text('{"name": "old"}\n')
    return tmp_path


def names(path: Path) -> list[str]:
    return [json.loads(line)["name"] for line in path.read_text().splitlines()]


def test_steps_go_on_from_all_rows_and_new_ones_alone_come_back(quick: Path) -> None:
    script = quick / "adds.py"
    script.write_text(ADDS)
    one, two = (Command(f"{script} {{rows}} {word}", "study", "study/runs.jsonl") for word in ("one", "two"))
    other = Command(f"{script} {{rows}} new", "again")
    place = quick / "place"
    runs.prepare("", [], place)
    assert runs.run(Item("", 1, ((one, other), (two,))), place, quick / "out", time.time() + 60)
    assert names(quick / "out/study.jsonl") == ["one after old", "two after old one after old"]
    assert names(quick / "out/again.jsonl") == ["new after "]


def test_when_the_time_is_up_all_processes_end_and_whole_rows_come_back(quick: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = quick / "stays.py"
    script.write_text(STAYS)
    place, child = quick / "place", quick / "child"
    (place / "pages/one").mkdir(parents=True)
    stays = Command(f"{script} {{rows}} {child}", "study", "study/runs.jsonl")
    later = Command(f"{script} {{rows}} {quick / 'later'}", "study")
    item = Item("", 1, ((stays,), (later,)), folder="pages")
    assert not runs.run(item, place, quick / "out", time.time() + 8)
    assert names(quick / "out/study.jsonl")[:1] == ["made"] and (quick / "out/pages.tar.gz").is_file()
    gone(child)
    told = capfd.readouterr().out
    assert "ended with -9, 1 new rows" in told and "not begun, no time" in told and not (quick / "later").exists()


def test_rows_of_an_earlier_call_stay_and_are_not_made_again(quick: Path) -> None:
    script, place, out = quick / "adds.py", quick / "a place", quick / "out"
    script.write_text(ADDS)
    place.mkdir()
    for word in ("one", "two"):
        item = Item("", 1, ((Command(f"{script} {{rows}} {word}", "study", "study/runs.jsonl"),),))
        assert runs.run(item, place, out, time.time() + 60)
        os.link(out / "study.jsonl", out / f"after-{word}")  # which would change if the file were not written beside and put there
    assert names(out / "study.jsonl") == ["one after old", "two after old one after old"]
    assert names(out / "after-one") == ["one after old"]


def test_what_a_program_that_died_left_running_ends(quick: Path) -> None:
    script, child, place = quick / "dies.py", quick / "child", quick / "place"
    script.write_text(STAYS.replace("time.sleep(600)\n", "sys.exit(1)\n"))
    place.mkdir()
    assert not runs.run(Item("", 1, ((Command(f"{script} {{rows}} {child}", "study"),),)), place, quick / "out", time.time() + 60)
    gone(child)


def test_a_command_that_cannot_begin_ends_those_beside_it(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, child, place = quick / "stays.py", quick / "child", quick / "place"
    script.write_text(STAYS)
    place.mkdir()
    stays, other = Command(f"{script} {{rows}} {child}", "study"), Command("other", "study")
    begin = runs.begin

    def broken(command: Command, *given: Any) -> Any:
        deadline = time.time() + 10
        while command is other and not (child.is_file() and child.read_text()) and time.time() < deadline:
            time.sleep(0.05)
        if command is other:
            raise OSError("mine")
        return begin(command, *given)

    monkeypatch.setattr(runs, "begin", broken)
    with pytest.raises(OSError, match="mine"):
        runs.run(Item("", 1, ((stays, other),)), place, quick / "out", time.time() + 60)
    gone(child)


def test_a_call_that_is_terminated_ends_its_programs_and_keeps_their_rows(quick: Path) -> None:
    script, child, out = quick / "stays.py", quick / "child", quick / "out"
    script.write_text(STAYS)
    item = f"Item('', 1, ((Command('{script} {{rows}} {child}', 'study'),),))"
    imports = "from experiments.elsewhere import __main__ as m; from experiments.elsewhere.plan import Command, Item"
    code = f"{imports}; m.ITEMS['mine'] = {item}; m.main()"
    words = [sys.executable, "-c", code, "run", "mine", str(out), "--place", str(quick / "place")]
    process = subprocess.Popen(words, cwd=Path(runs.__file__).parents[2])
    deadline = time.time() + 30
    while not (child.is_file() and child.read_text()) and time.time() < deadline:
        time.sleep(0.05)
    process.terminate()
    assert process.wait(30) == 143
    gone(child)
    assert names(out / "study.jsonl") == ["made"]


def gone(child: Path) -> None:
    """Waits until the process whose number is in a file has ended."""
    pid, deadline = int(child.read_text()), time.time() + 10
    while alive(pid) and time.time() < deadline:
        time.sleep(0.05)
    ended = not alive(pid)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    assert ended


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody asked after does not."""
    try:
        os.kill(pid, 0)
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (OSError, ValueError):
        return False


@pytest.fixture
def source(tmp_path: Path) -> Path:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name in [*(f"train-{i:02}.jsonl.gz" for i in range(7)), *HELD_OUT.values()]:
        with gzip.open(corpus / name, "wt") as file:
            file.writelines(json.dumps({"text": f"{name} {i} " + "one two three four " * 20}) + "\n" for i in range(4))
    return corpus


def test_what_is_packed_is_there_again_under_the_names_that_runs_read(source: Path, tmp_path: Path) -> None:
    parts = pack(source, tmp_path / "parts", 500)
    assert len(parts) > 1
    place = tmp_path / "place"
    runs.prepare(TEXT, parts[::-1], place)
    train = [f"train-{i:02}.jsonl.gz" for i in range(7)]
    assert {path.name for path in (place / "corpus").iterdir()} == {*train, *HELD_OUT.values()}
    assert (place / "bpe/tokenizer.json").is_file()
    for path in (place / "corpus").iterdir():
        assert gzip.decompress(path.read_bytes()) == gzip.decompress((source / path.name).read_bytes())
    runs.prepare(TEXT, [], place)  # a second item with the same parts
    (place / runs.OPENED).write_text("wide")  # by an older checkout
    with pytest.raises(ValueError, match="holds what was packed as wide, and text is needed; give another --place"):
        runs.prepare(TEXT, [], place)


def test_the_command_of_the_list_packs(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (told,) = {line.split("elsewhere ")[1] for line in listed().splitlines() if line.startswith("    here")}
    places = {"CORPUS": source, TEXT: tmp_path / "parts"}
    monkeypatch.setattr(sys, "argv", ["elsewhere", *(str(places.get(word, word)) for word in told.split())])
    main()
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'parts' / '0'}: ")


@pytest.mark.parametrize("item", [name for name, item in ITEMS.items() if item.needs])
def test_without_what_was_packed_one_line_says_what_to_give(
    item: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    for parts in ([], ["--parts", str(tmp_path / "nowhere")]):
        monkeypatch.setattr(sys, "argv", ["elsewhere", "run", item, str(tmp_path / "out"), "--place", str(tmp_path / "p"), *parts])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr().err
        assert ended.value.code == 2 and told.count("\n") == 1 and ("nowhere" if parts else "--parts") in told
