"""Pages are what their templates make of the committed rows: a wrong row, a number typed by hand and a stale page are found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.readme import rows
from experiments.templates import engine
from experiments.templates.engine import Template, templates

TOLD = """---
queries: [experiments.readme.rows]
settings: ['width \\d+']
---
# A study

Of width 64, `8` and [a link](page-2.md): loss **{{ rows.only("runs.jsonl", name="loop").loss | size }}**.
"""
PAGE = "# A study\n\nOf width 64, `8` and [a link](page-2.md): loss **3.512**.\n"


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Template:
    """Returns the template of a page in a folder of its own, with one row beside it."""
    monkeypatch.setattr(engine, "ROOT", tmp_path)
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/study.md").write_text(PAGE)
    (tmp_path / "runs.jsonl").write_text(json.dumps({"name": "loop", "loss": 3.5123}) + "\n")
    (tmp_path / "study.md.j2").write_text(TOLD)
    return Template(tmp_path / "study.md.j2")


def changed(template: Template, right: str, wrong: str) -> Template:
    """Returns a template after one exchange in its text."""
    text = template.path.read_text()
    assert text.count(right) == 1
    template.path.write_text(text.replace(right, wrong))
    return Template(template.path)


@pytest.mark.parametrize("template", templates(), ids=lambda template: template.name)
def test_a_page_is_what_its_template_makes_of_the_rows(template: Template) -> None:
    assert template.problems() == []
    assert template.render() == template.render()


def test_a_page_that_is_as_its_rows_say_passes(study: Template) -> None:
    assert study.problems() == [] and study.render() == PAGE


def test_a_planted_wrong_row_is_found(study: Template, tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text(json.dumps({"name": "loop", "loss": 3.4123}) + "\n")
    (line,) = study.problems()
    told = "'…age-2.md): loss **3.512**.' is '…age-2.md): loss **3.412**.' by its template and the rows"
    assert line == f"docs/study.md, line 3: {told}; make pages"


def test_a_planted_wrong_number_on_the_page_is_found(study: Template) -> None:
    study.page.write_text(PAGE.replace("3.512", "3.612"))
    assert len(study.problems()) == 1
    study.page.write_text(PAGE + "One line more.\n")
    assert study.problems() == ["docs/study.md: 4 lines, by its template and the rows 3; make pages"]


@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        ("# A study", "# A study, 0.02 ahead", "study.md.j2: 0.02 in '# A study, 0.02 ahead Of #, and"),
        (" | size }}", " | size }} of 3.4", "3.4 in '… : loss **…{{ }} of 3.4**.'"),
        ('{{ rows.only("runs.jsonl", name="loop").loss | size }}', "{{ 3.512 }}", "3.512 in an expression"),
        ('{{ rows.only("runs.jsonl", name="loop").loss | size }}', '{{ "loss 3.512" | trim }}', "loss 3.512 in an expression"),
        ('{{ rows.only("runs.jsonl", name="loop").loss | size }}', '{{ "3.5" if rows.WORDS else "" }}', "3.5 in an expression"),
        ("# A study", '{% set loss = "3.5" %}\n# A study', "3.5 in an expression"),
        ("# A study", "{% for loss in (3.5, 3.6) %}{% endfor %}\n# A study", "3.5 in an expression"),
    ],
)
def test_a_number_typed_by_hand_is_found(study: Template, right: str, wrong: str, named: str) -> None:
    study = changed(study, right, wrong)
    study.page.write_text(study.render())
    assert [line for line in study.problems() if named in line], study.problems()
