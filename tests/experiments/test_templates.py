"""Pages are what their templates make of the committed rows: a wrong row, a number typed by hand and a stale page are found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.templates import engine, halting, rows, words
from experiments.templates.engine import Template, templates
from experiments.templates.words import Gaps

TOLD = """---
queries: [experiments.templates.rows]
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
    assert template.render() == template.page.read_text(), "rendered once more"


@pytest.mark.studies
def test_a_wrong_row_of_a_study_makes_its_page_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    found = rows.rows_of("halting/runs.jsonl")
    (row,) = (row for row in found if row["name"] == "columns/ouro/0")
    row["stages"]["joint"]["rules"]["gate"]["loss"][2] += 0.001
    caches = [each for each in vars(halting).values() if hasattr(each, "cache_clear")]
    monkeypatch.setattr(halting, "rows_of", lambda _: found)
    try:
        for each in caches:
            each.cache_clear()
        (line,) = Template(engine.FOLDER / "halting.md.j2").stale()
    finally:
        for each in caches:
            each.cache_clear()
    assert line.startswith("docs/halting.md, line ") and line.endswith("make pages")


def test_a_sentence_that_the_rows_do_not_bear_out_is_named_with_its_line(study: Template) -> None:
    study = changed(study, "# A study", "{% do holds(1 > 2) %}\n# A study")
    with pytest.raises(ValueError, match=r"study.md.j2, line 5: the rows do not bear this sentence out"):
        study.render()
    with pytest.raises(ValueError, match=r"line 5: 'rows' has no|line 5: .*no attribute 'none'"):
        changed(study, "holds(1 > 2)", "holds(rows.none)").render()


def test_a_word_for_several_differences_must_be_the_same_of_all() -> None:
    low, high, open_ = Gaps((-0.2, -0.21, -0.19)), Gaps((0.2, 0.21, 0.19)), Gaps((0.2, -0.3, 0.25))
    assert (words.stands([low, low]), words.decided([low, high])) == ("ahead", "decided")
    assert (words.size([low, high]), words.signed(low), words.agree(open_)) == ("0.200 and 0.200", "−0.200", "two of three")
    assert words.told(open_).endswith("undecided") and words.told(None) == "–"
    for several, tell in (([low, high], words.stands), ([low, open_], words.decided)):
        with pytest.raises(ValueError, match="several values where one sentence tells them all"):
            tell(several)


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
        ("settings: ['width \\d+']", "settings: ['width \\d+', 'depth \\d+']", "the setting 'depth \\\\d+' is not in the prose"),
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
