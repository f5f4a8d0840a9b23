"""The shelf of recipes."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopwright.recipes.shelf import FOLDER, find, names, recipe


def test_a_file_wins_over_a_name_and_names_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert {"demo-plain", "demo-stable", "stars-addition", "stars-ouro"} <= set(names())
    assert find("demo-plain") == FOLDER / "demo-plain.yaml" == find("recipes/demo-plain.yaml")
    (tmp_path / "demo-plain").write_text((FOLDER / "demo-plain.yaml").read_text().replace("updates: 1200", "updates: 7"))
    assert recipe("demo-plain").updates == 7


def test_an_unknown_word_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'stars-addition'"):
        find("stars-additon")
