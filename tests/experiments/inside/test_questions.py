"""The command that the studies of questions share: rows are added with where they were made, and the last of a name is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.inside.questions import arguments, carry_out


def test_rows_say_where_they_were_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.jsonl"
    options = arguments("about", examples=3).parse_args(["a", "b", "a", "--out", str(out)])

    def measured(source: str, done: set[str], **given: object) -> list[dict[str, object]]:
        return [{"name": name, **given} for name in (f"{source}/1", f"{source}/2") if name not in done]

    out.write_text('{"name": "a/1", "examples": 3, "origin": {"commit": "", "devices": [], "torch": "", "time": ""}}\n{"name": "b/')
    carry_out(options, measured, lambda rows: f"{len(rows)} rows")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["name"] for row in rows] == ["a/1", "a/2", "b/1", "b/2"], "what is there is not made again, a broken line is"
    assert {row["examples"] for row in rows} == {3}
    assert all({"commit", "devices", "torch", "time"} <= set(row["origin"]) and "command" not in row["origin"] for row in rows)
    assert capsys.readouterr().out.endswith("4 rows\n")
