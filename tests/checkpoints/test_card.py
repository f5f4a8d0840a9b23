"""Cards: what they say, and whose words stay."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import loopwright as lw
from loopwright.checkpoints.save import command_line, is_edited, model_card, put_card, without_folders
from loopwright.storage.manifest import CARD, verify
from tests.cases import noisy

TEXT = model_card(lw.preset("ouro-1.4b-tiny"), sections={"A": "…"})


@pytest.mark.parametrize("name", ["ouro-1.4b-tiny", "huginn-tiny"])
def test_a_saved_model_says_what_it_is_and_chooses_no_licence(name: str, tmp_path: Path) -> None:
    model = noisy(name)
    lw.save(model, tmp_path / "m", about={"Data": "two digits"})
    text = (tmp_path / "m" / CARD).read_text()
    assert f"core × {model.config.depth}" in text and f"It runs {model.config.depth} unless told" in text
    assert "## Data\n\ntwo digits\n" in text and lw.__version__ in text
    head = yaml.safe_load(text.split("---")[1])
    assert "license" not in head and head["library_name"] == "transformers" and not is_edited(text.encode())


def test_an_edited_card_stays_and_ours_is_written_anew(tmp_path: Path) -> None:
    model, card = noisy("ouro-1.4b-tiny"), tmp_path / "m" / CARD
    lw.save(model, tmp_path / "m", about={"First": "one"})
    lw.save(model, tmp_path / "m", about={"Second": "two"})
    assert "Second" in card.read_text() and "First" not in card.read_text()
    mine = card.read_text().replace("# A looped", "# My looped")
    card.write_text(mine)
    assert verify(tmp_path / "m") == [], "a card is no part of the manifest"
    lw.save(model, tmp_path / "m", about={"Third": "three"})
    assert card.read_text() == mine and verify(tmp_path / "m") == []


@given(at=st.integers(0, 10_000), letter=st.characters(codec="utf-8"))
def test_any_changed_letter_makes_a_card_the_persons_own(at: int, letter: str) -> None:
    at = at % len(TEXT)
    changed = TEXT[:at] + letter + TEXT[at + 1 :]
    assert is_edited(changed.encode()) == (changed != TEXT)


def test_a_card_of_others_stays_also_where_it_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / CARD).write_bytes(b"\xff\xfe mine")
    (tmp_path / "new").mkdir()
    put_card(tmp_path / "new", "ours", before=tmp_path / "old")
    assert (tmp_path / "new" / CARD).read_bytes() == b"\xff\xfe mine"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("/srv/me/my data/x.txt", "x.txt"),
        ("/srv/me/corpus/", "corpus"),
        ("/data", "data"),
        ("/", "/"),
        ("data.files=/srv/me/train-*.gz", "data.files=train-*.gz"),
        ("data.files=[/srv/me/a.gz,/srv/me/b.gz]", "data.files=[a.gz,b.gz]"),
        ("in=/srv/me/a", "in=a"),
        ('{"source": "/srv/me/a", "rank": 8}', '{"source": "a", "rank": 8}'),
        ("file:///srv/me/a", "file:a"),
        ("https://host/a/b", "https://host/a/b"),
        ("owner/name", "owner/name"),
        ("../a/b", "../a/b"),
        ("./a", "./a"),
        ("~/a/b", "~/a/b"),
        ("gate.*", "gate.*"),
    ],
)
def test_of_an_absolute_path_the_last_component_is_shown(given: str, shown: str) -> None:
    assert without_folders({"a": [given, 1, None]}) == {"a": [shown, 1, None]}
    assert command_line(["/env/bin/loopwright", given]) == shlex.join(["loopwright", shown])


def test_a_module_that_runs_is_named_as_its_package() -> None:
    assert command_line(["/env/site-packages/loopwright/__main__.py", "train"]) == "loopwright train"
