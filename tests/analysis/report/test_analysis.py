"""The page of an analysis: its questions in order, each figure with its sentence, from saved numbers alone."""

import json
import re
from functools import cache
from html import unescape
from pathlib import Path

import pytest

from loopwright.analysis import figures as stages
from loopwright.analysis import figures as states
from loopwright.analysis.report import analysis
from loopwright.analysis.report.analysis import BETWEEN_LAYERS, MORE, READ, READ_DENSE, draw_all, sections, write_analysis
from loopwright.analysis.report.page import _digest
from tests.analysis.summaries import bare, dense, looped, overflowing

pytestmark = pytest.mark.usefixtures("unlaid")
QUESTIONS = [
    "What this model is",
    "Does it converge, and to what?",
    "Are its stages those of a feedforward model?",
    "Is more depth safe?",
]


@cache
def drawn() -> dict[str, str]:
    """The figures of the looped model beside the dense one, drawn once for all tests."""
    return draw_all(looped(), dense())


@pytest.mark.long
def test_the_page_answers_the_questions_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(analysis, "draw_all", lambda *given: drawn())
    page = write_analysis(json.loads(json.dumps(looped())), tmp_path, dense=json.loads(json.dumps(dense())), footer="made here")
    text = page.read_text()
    places = [text.index(question) for question in QUESTIONS]
    assert places == sorted(places)
    assert "“More depth is safe”: " in text and "made here" in text and 'src="' not in text
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)  # the page's own, and the policy names it
    assert f"script-src '{_digest(script)}'" in unescape(text) and "data-axes" in text
    figures = {path.stem for path in (tmp_path / "figures").glob("*.svg")}
    assert figures == set(drawn()) and len(figures) >= 14 and all(svg in text for svg in drawn().values())


@pytest.mark.slow
def test_the_same_numbers_give_the_same_bytes():
    assert draw_all(json.loads(json.dumps(looped())), json.loads(json.dumps(dense()))) == drawn()


def test_every_figure_is_on_the_page_with_its_sentence():
    pictures = drawn()
    shown = [picture for section in sections(looped(), dense(), pictures) for picture in [*section.pictures, *section.more]]
    assert sorted(picture.svg for picture in shown) == sorted(pictures.values())
    whole = {name: f"{said} {MORE[name][1]}" if name in MORE else said for name, said in READ.items()}
    assert {picture.caption for picture in shown} == {whole[name] for name in pictures}


def captions(metrics, pictures: dict[str, str]) -> str:
    found = sections(metrics, None, pictures)
    return " ".join(picture.caption for section in found for picture in [*section.pictures, *section.more])


@pytest.mark.slow
def test_captions_say_nothing_of_what_is_not_drawn():
    few = {"fixed-points": stages.STAGE_FIGURES["fixed-points"]} | {
        name: states.STATE_FIGURES[name][1] for name in MORE if "plan" in name
    }
    lone = {name: draw(bare()) for name, draw in few.items()}
    whole, lonely = captions(looped(), drawn() | {"stages-by-step": stages.by_step(looped())}), captions(bare(), lone)
    assert "dashed red" not in whole and "framed" in whole and "farthest from it ends" in whole
    assert "framed" not in lonely and "farthest from it ends" not in lonely
    assert "cosine to farthest" not in lone["fixed-points"]


@pytest.mark.slow
def test_a_core_of_one_layer_has_every_figure_but_those_between_layers():
    pictures = draw_all(bare())
    assert {"fixed-points", "floorplan", "spectrum"} <= set(pictures) and not set(BETWEEN_LAYERS) & set(pictures)
    assert not {"stages-by-step", "norms", "neurons"} & set(pictures)  # a line over one layer is a point
    said = captions(bare(), pictures)
    assert "framed" not in said and "farthest from it ends" not in said


def limits_line(**changes) -> str:
    metrics = json.loads(json.dumps(looped()))
    metrics["limits"] |= changes
    kept = {**metrics, "limits": {name: each for name, each in metrics["limits"].items() if each is not None}}
    tables = [table for section in sections(kept, None, {}) for table in section.tables]
    return next(table.caption for table in tables if table.head[0] == "settles into")


def test_orbits_and_layers_are_spoken_of_where_there_are_numbers():
    orbits = {"tokens": 7, "median_amplitude": 0.123, "largest_amplitude": 0.4, "median_frequency": 0.5}
    rates = {"tokens": [[0.5, 0.5, 0.0, 0.0], [0.25, 0.75, 0.0, 0.0]], "examples": []}
    said = limits_line(orbits=orbits, by_layer=rates)
    assert "7 tokens orbit, with amplitude 0.12 (median; largest 0.40) and 0.50 turns a step (median)" in said
    assert "from 25 % (layer 1) to 50 % (layer 0) of tokens rest" in said
    assert "tokens orbit" not in limits_line(orbits=None, by_layer=rates)
    assert "At every layer 100 % of tokens rest." in limits_line(by_layer={"tokens": [[1.0, 0.0, 0.0, 0.0]] * 2, "examples": []})
    assert "layer 0" not in limits_line(orbits=None, by_layer={"tokens": rates["tokens"][:1], "examples": []})
    assert limits_line(orbits=None, by_layer=None) == "At the last layer of the core, by similarity to the final step."
    assert "1 token orbits, with amplitude" in limits_line(orbits=orbits | {"tokens": 1})


@pytest.mark.long
def test_a_dense_models_page(tmp_path):
    text = write_analysis(dense(), tmp_path).read_text()
    assert "Its stages" in text and "Does it converge" not in text
    assert "<strong>Each layer runs once.</strong>Attention gathers" in text  # it opens with what its layers do
    assert "each layer once" in text and "input injection" not in text and text.count("ttention gathers most") == 1
    pictures = {path.stem: path.read_text() for path in (tmp_path / "figures").glob("*.svg")}
    shown = [picture for section in sections(dense(), None, pictures) for picture in [*section.pictures, *section.more]]
    assert sorted(picture.svg for picture in shown) == sorted(pictures.values())
    assert {picture.caption for picture in shown} == {(READ | READ_DENSE)[name] for name in pictures}


def test_the_example_pages_are_small_whole_and_linked():
    folder = Path(__file__).parents[3] / "docs"
    pages = sorted(folder.glob("examples/*/report.html"))
    assert len(pages) == 7 and sum(page.stat().st_size for page in pages) < 3e6
    told = (folder / "analysis.md").read_text()
    for page in pages:
        text = page.read_text()
        assert f"(examples/{page.parent.name}/report.html)" in told
        assert not re.search(r"(?:src|href)=\"(?!#|data:)", text)
        assert not re.search(r"/(?:home|root|tmp|work|Users)/", text)


@pytest.mark.slow
@pytest.mark.parametrize("beside", [dense, lambda: None])
def test_a_model_that_overflows_has_a_page_that_says_so(tmp_path, beside):
    metrics = json.loads(json.dumps(overflowing(), allow_nan=False))
    text = write_analysis(metrics, tmp_path, dense=beside()).read_text()
    assert "No: 100 % of layers do not stay" in text and "✗ Does not hold." in text
    assert "“More depth is safe”: by step 12 layers have lost their numbers" in text
    assert not re.search(r"\bnan\b", text)


def test_a_folder_that_is_not_there_and_one_without_an_analysis(tmp_path: Path) -> None:
    for folder, wrong in ((tmp_path, "holds no analysis.json"), (tmp_path / "nosuch", "is no folder")):
        with pytest.raises(ValueError, match=rf"figures: {folder} {wrong}; give a folder that `loopwright analyze` wrote"):
            analysis.figures(folder)
