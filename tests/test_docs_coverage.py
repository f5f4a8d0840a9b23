"""docs/coverage.md lists every numbered table and figure of the four papers once, and says of each what there is."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "experiments" / "results"
PAGE = (ROOT / "docs" / "coverage.md").read_text()
LOG = (ROOT / "experiments" / "LOG.md").read_text()
# the largest number of each paper's tables and figures; ASURA's figures have none, and are counted as they come
LAST = {
    ("STARS", "Table"): 4,
    ("STARS", "Figure"): 8,
    ("Ouroboros", "Table"): 5,
    ("Ouroboros", "Figure"): 1,
    ("ASURA", "Table"): 0,
    ("ASURA", "Figure"): 7,
    ("A mechanistic analysis", "Table"): 4,
    ("A mechanistic analysis", "Figure"): 63,
}
STATUSES = {"reproduced", "in part", "not possible here", "nothing to measure"}
Row = tuple[str, str, list[int], str, str]  # paper, kind, numbers, status, what there is


def rows(page: str) -> list[Row]:
    found = []
    for section in page.split("\n## ")[1:]:
        paper, *lines = section.splitlines()
        for line in lines:
            if match := re.match(r"\| (Table|Figure)s? ([\d, –]+) \|", line):
                _, _, status, here = (cell.strip() for cell in line.strip("|").split(" | "))
                found.append((paper, match[1], numbers(match[2]), status, here.strip(" |")))
    return found


def numbers(text: str) -> list[int]:
    """ "2, 19–21" is 2, 19, 20, 21."""
    spans = [[int(end) for end in span.split("–")] for span in text.split(", ")]
    return [number for span in spans for number in range(span[0], span[-1] + 1)]


def listed(page: str, paper: str, kind: str) -> list[int]:
    return sorted(number for row in rows(page) if row[:2] == (paper, kind) for number in row[2])


@pytest.mark.parametrize(("paper", "kind"), LAST)
def test_no_number_is_missing_or_twice(paper: str, kind: str) -> None:
    assert listed(PAGE, paper, kind) == list(range(1, LAST[paper, kind] + 1))


@pytest.mark.parametrize(("line", "paper"), [("| Figures 20, 21 |", "A mechanistic analysis"), ("| Figure 8 | Ouro", "STARS")])
def test_a_line_left_out_is_seen(line: str, paper: str) -> None:
    without = "\n".join(each for each in PAGE.splitlines() if not each.startswith(line))
    assert without != PAGE.rstrip("\n") and listed(without, paper, "Figure") != list(range(1, LAST[paper, "Figure"] + 1))


def test_every_line_has_a_status_and_what_was_run_a_link() -> None:
    assert {row[3] for row in rows(PAGE)} == STATUSES
    assert len(rows(PAGE)) == len(re.findall(r"^\| (?:Table|Figure)", PAGE, re.MULTILINE))
    shown = ("](", "`loopwright inspect", "As Figure")
    assert [row for row in rows(PAGE) if row[3] in ("reproduced", "in part") and not any(word in row[4] for word in shown)] == []


def of_no_commit(text: str) -> set[str]:
    """Returns what tells each row of a file that names no commit from the others."""
    read = [json.loads(line) for line in text.splitlines()]
    told = ("name", "core", "label", "laid_over")
    return {json.dumps([row.get(key) for key in told]) for row in read if not (row.get("origin") or {}).get("commit")}


def known(commit: str) -> bool:
    """Returns whether a commit is in the history that is here."""
    return not subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True).returncode


def untraced() -> list[list[str]]:
    """Returns the cells of each line of the table of files with rows that name no commit."""
    return [line.strip("| ").split(" | ") for line in PAGE.splitlines() if re.match(r"\| [\w/-]+\.jsonl \|", line)]


def committed() -> list[tuple[str, list[str]]]:
    """Returns each file with rows that name no commit, and the commits that brought them."""
    return [(f"experiments/results/{file}", commits.split(", ")) for file, _, _, commits, _ in untraced()]


def made_at() -> list[tuple[str, dict[str, int]]]:
    """Returns how many rows of each of these files were made at which commit by the log, or "not said"."""
    parts = [(file, [part.strip(")").split(" (") for part in made.split(", ")]) for file, _, _, _, made in untraced()]
    return [(file, {commit: int(count) for commit, count in counts}) for file, counts in parts]


@pytest.mark.parametrize(("file", "commits"), committed(), ids=lambda value: value if isinstance(value, str) else "")
def test_each_commit_brought_rows_that_name_none(file: str, commits: list[str]) -> None:
    def at(commit: str) -> set[str]:
        shown = subprocess.run(["git", "show", f"{commit}:{file}"], cwd=ROOT, capture_output=True, text=True)
        return of_no_commit(shown.stdout)

    if not known(commits[0]):
        pytest.skip("not a clone with its history")
    left = of_no_commit((ROOT / file).read_text())
    for commit in commits:
        brought = left & (at(commit) - at(f"{commit}^"))
        assert brought, commit
        left -= brought
    assert not left


def test_the_commits_that_rows_were_made_at_add_up() -> None:
    bare = total = silent = 0
    for file, counts in made_at():
        origins = [json.loads(line).get("origin") for line in (RESULTS / file).read_text().splitlines()]
        without = [origin for origin in origins if not (origin or {}).get("commit")]
        assert sum(counts.values()) == len(without), file
        bare, total, silent = bare + without.count(None), total + len(without), silent + counts.get("not said", 0)
    assert f"{bare} hold no `origin`, {total - bare} one without a commit" in PAGE
    assert f"at which commit {total - silent} of them were made" in PAGE and f"of the other {silent} only" in PAGE


@pytest.mark.parametrize("commit", sorted({commit for _, counts in made_at() for commit in counts} - {"not said"}))
def test_the_log_names_each_commit_that_rows_were_made_at(commit: str) -> None:
    if not known(committed()[0][1][0]):
        pytest.skip("not a clone with its history")
    assert known(commit)
    subject = subprocess.run(["git", "log", "-1", "--format=%s", commit], cwd=ROOT, capture_output=True, text=True, check=True)
    assert commit in LOG or f'"{subject.stdout.strip()}"' in LOG


def test_rows_name_commits_of_the_history_but_for_those_that_the_page_tells() -> None:
    if not known(committed()[0][1][0]):
        pytest.skip("not a clone with its history")
    rows = [json.loads(line) for file in RESULTS.rglob("*.jsonl") for line in file.read_text().splitlines()]
    origins = [row.get("origin") or {} for row in rows if isinstance(row, dict)]
    commits = [origin["commit"] for origin in origins if origin.get("commit")]
    strange = {commit for commit in set(commits) if not known(commit)}
    assert sum(commits.count(commit) for commit in strange) == 3
    assert "Three rows of `inside/stages/stages.jsonl` (the retrofit before training) name a commit that is not in" in PAGE
