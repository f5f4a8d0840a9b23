"""Recipes: strict, readable, and the same after a way through YAML."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopwright.recipes import FOLDER, names, recipe
from loopwright.schema import read_yaml, write_yaml
from loopwright.training.recipe import first_difference, make_recipe, read_recipe, written


def plain(name: str = "demo-stable") -> dict:
    return read_yaml((FOLDER / f"{name}.yaml").read_text(), name)


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("toy", [False, True])
def test_every_shipped_recipe_is_sound_and_reads_back(name: str, toy: bool, tmp_path: Path) -> None:
    chosen = recipe(name, toy=toy)
    (tmp_path / "r.yaml").write_text(written(chosen))
    assert read_recipe(tmp_path / "r.yaml") == chosen
    assert len(chosen.about) < 140 and (not toy or chosen.updates == 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("optm={kind: adamw}", "unknown 'optm'; did you mean 'optim'"),
        ("optim.lrr=1", "optim (adamw): unknown 'lrr'; did you mean 'lr'"),
        ("depth.kind=log-norml", "depth: unknown kind 'log-norml'; did you mean 'log-normal'"),
        ("objective.kind=evry-step", "objective: unknown kind 'evry-step'; did you mean 'every-step'"),
        ("penalties=[{kind: jacobin}]", "penalties[0]: unknown kind 'jacobin'; did you mean 'jacobian'"),
        ("updates=many", "updates is 'many'; allowed: a whole number"),
        ("updates=0", "updates must be at least 1 (got 0)"),
        ("accumulate=0", "accumulate must be at least 1 (got 0)"),
        ("batch=1000000000000", "batch must be at most 10,000,000 (got 1000000000000)"),
        ("seed=2147483648", "seed must be at most 2,147,483,647 (got 2147483648)"),
        ("accumulate=3", "batch (128) must be a multiple of accumulate (3)"),
        ("precision=fp8", "precision is 'fp8'"),
        ("remat=stepp", "remat: unknown kind 'stepp'; did you mean 'step'"),
        ("remat={kind: implicit, term: 3}", "remat (implicit): unknown 'term'; did you mean 'terms'"),
        ("clip=-1", "clip is -1"),
        ("updates=1:30", "recipe: updates is '1:30'; allowed: a whole number"),
        ("batch=1_024", "recipe: batch is '1_024'; allowed: a whole number (write 1024: in YAML 1.2 a number has no _)"),
        ("save.best=yes", "save: best is 'yes'; allowed: true or false (write true: in YAML 1.2 yes is text)"),
        ("compile=off", "compile is 'off'; allowed: auto, true or false"),
        ("graph=3", "graph is 3; allowed: auto, true or false"),
        ("compile=maybe", "compile is 'maybe'; allowed: auto, true or false"),
        ("validate.evry=3", "validate: unknown 'evry'; did you mean 'every'"),
        ("validate.depths=[0]", "depths has 0"),
        ("data.digits=two", "data (addition): digits is 'two'; allowed: a whole number"),
        ("model.kind=presets", "model: unknown kind 'presets'; did you mean 'preset'"),
        ("schedule.warmup=1.5", "schedule (wsd): warmup is 1.5; allowed: a whole number"),
        ("look.every=3", "look is called validate now; rename it"),
        ("validate=3", "validate: 3; allowed: a mapping"),
        ("save.keep=0", "save: keep is 0; allowed: at least 1"),
        ("validate.rows=0", "validate: rows is 0; allowed: at least 1"),
        ("validate.every=-1", "validate: every is -1; allowed: at least 0"),
        ("validate.every=0", "start_accuracy waits for a validation"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(change: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        recipe("demo-stable", [change])
    assert message in str(error.value) and "\n" not in str(error.value)
    assert str(error.value).startswith("override: ")  # the shipped recipe is right


def test_the_file_is_blamed_where_it_is_wrong_without_the_override(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(write_yaml({**plain(), "updates": "many"}))
    with pytest.raises(ValueError, match=r"own\.yaml: recipe: updates is 'many'"):
        read_recipe(tmp_path / "own.yaml", ["clip=2"])


def test_numbers_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    """In an override and in a file: neither octal, nor to the base of 60; a whole number may be written with an exponent."""
    changed = recipe("demo-stable", ["batch=0128", "updates=1e4", "seed=0o17", "optim.lr=1e-3"])
    assert (changed.batch, changed.updates, changed.seed, changed.optim["lr"]) == (128, 10_000, 15, 1e-3)
    assert isinstance(changed.updates, int)
    text = written(changed)
    (tmp_path / "mine.yaml").write_text(text.replace("batch: 128", "batch: 0128").replace("updates: 10000", "updates: 1E4"))
    assert read_recipe(tmp_path / "mine.yaml") == changed


def test_an_override_reaches_into_a_list() -> None:
    assert recipe("demo-stable", ["penalties.0.weight=0.3"]).penalties[0]["weight"] == 0.3
    with pytest.raises(ValueError, match=r"^override: penalties\[0\] \(jacobian\): unknown 'wait'; did you mean 'weight'"):
        recipe("demo-stable", ["penalties.0.wait=3"])
    with pytest.raises(ValueError, match=r"^override: penalties\.7: penalties has 1; allowed: penalties\.0 to penalties\.0"):
        recipe("demo-stable", ["penalties.7.weight=1"])


def test_a_number_of_an_override_that_no_machine_word_holds() -> None:
    with pytest.raises(ValueError, match=r"^override: 'clip': the value is 10{21}; allowed: whole numbers of at most 64 bits$"):
        recipe("demo-stable", ["clip=1000000000000000000000"])


def test_a_missing_setting_and_a_broken_file_are_named(tmp_path: Path) -> None:
    data = plain()
    del data["updates"]
    with pytest.raises(ValueError, match=r"^recipe: missing updates"):
        make_recipe(data)
    with pytest.raises(ValueError, match="not a mapping"):
        make_recipe([1])
    (tmp_path / "bad.yaml").write_text("a: [1\nb: 2\n")
    with pytest.raises(ValueError, match=r"bad\.yaml, line \d: not valid YAML"):
        read_recipe(tmp_path / "bad.yaml")
    with pytest.raises(ValueError, match="cannot be read"):
        read_recipe(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not UTF-8 text"):
        read_recipe(tmp_path / "bytes.yaml")


def test_overrides_reach_into_sections_and_kinds() -> None:
    chosen = recipe("demo-stable", ["optim.lr=1e-4", "validate.every=7", "depth={kind: fixed, depth: 3}", "penalties=[]"])
    assert chosen.optim["lr"] == 1e-4 and chosen.optim["betas"] == [0.9, 0.99]
    assert chosen.validate.every == 7 and chosen.validate.rows == 300
    assert chosen.depth == {"kind": "fixed", "depth": 3} and chosen.penalties == []


def test_the_first_difference_is_named_and_what_is_free_is_not() -> None:
    one = recipe("demo-stable")
    assert first_difference(one, recipe("demo-stable", ["about=other", "save.every=5"])) is None
    assert first_difference(one, recipe("demo-stable", ["optim.lr=1e-4"])) == "optim.lr (0.003 there, 0.0001 here)"
    assert first_difference(one, recipe("demo-stable", ["optim.eps=1e-6"])) == "optim.eps (None there, 1e-06 here)"
    assert (first_difference(one, recipe("demo-plain")) or "").startswith("model.changes.embedding_norm")


def test_written_recipes_are_plain_yaml() -> None:
    text = written(recipe("demo-stable"))
    assert write_yaml(read_yaml(text, "x")) == text and "!!" not in text


def test_what_cannot_go_together_is_refused() -> None:
    two = "[{kind: jacobian, start_accuracy: 0.5}, {kind: state-change, start_accuracy: 0.99}]"
    with pytest.raises(ValueError, match="start_accuracy differs between penalties"):
        recipe("demo-stable", [f"penalties={two}"])
