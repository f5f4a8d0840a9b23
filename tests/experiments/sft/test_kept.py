"""Rows as they are kept: less in them, the same page; and a base that was trained is opened, not trained again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

import experiments.trained
import loopwright as lw
from experiments.kept import PASSAGES, whole
from experiments.sft.kept import write
from experiments.sft.plan import Places, Run
from experiments.sft.run import keep, trained_once
from loopwright.model.causal_lm import LoopedForCausalLM
from tests.experiments.sft.test_tables import page, row


@pytest.mark.usefixtures("unlaid")
def test_what_passages_are_is_said_once_and_the_page_is_the_same(tmp_path: Path) -> None:
    rows = [row(label, seed, 0.02) for label in ("heal", "fixed", "random") for seed in range(2)]
    measured, ended = tmp_path / "measured.jsonl", tmp_path / "rows.jsonl"
    measured.write_text("".join(json.dumps(each | {"answers": None}) + "\n" for each in rows))
    ended.write_text("".join(json.dumps(each) + "\n" for each in rows))
    kept = tmp_path / "kept.jsonl"
    write(kept, measured, ended)
    found = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [each["name"] for each in found] == [each["name"] for each in rows] and found[0]["answers"]["questions"] == 10
    assert [all(name in each["texts"]["chats"] for name in PASSAGES) for each in found] == [True, *[False] * 5]
    assert [len(losses) > 0 for losses in found[1]["texts"]["text"]["losses"]] == [False] * 3 + [True] + [False] * 3 + [True]
    assert page(kept) == page(ended)
    assert all("document_of" in each["texts"]["text"] for each in whole(found))


def test_a_base_that_was_trained_is_opened_and_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = LoopedForCausalLM(lw.preset("ouro-1.4b-tiny"))
    places, run = Places(str(tmp_path), str(tmp_path / "runs")), Run("heal")
    monkeypatch.setattr(experiments.trained, "train_once", lambda *given: pytest.fail("trained again"))
    lw.save(base, places.model(run))
    recipe = json.loads(json.dumps(asdict(run.recipe(places)), default=str))
    (places.model(run) / "training.json").write_text(json.dumps({"updates": 7, "recipe": recipe}))
    model, numbers = trained_once(run, places, ())
    assert numbers == {"updates": 7}
    assert all(bool((a == b).all()) for a, b in zip(model.state_dict().values(), base.state_dict().values(), strict=True))
    with pytest.raises(pytest.fail.Exception, match="trained again"):
        trained_once(Run("unlooped"), places, ())
    with pytest.raises(ValueError, match="heal-0 was trained by another recipe; remove it"):
        trained_once(run, places, ("heal.updates=3",))


def test_what_is_measured_stays_before_a_model_answers(tmp_path: Path) -> None:
    keep({"name": "fixed/2", "loss": 1.0}, Places("data", str(tmp_path)))
    assert json.loads((tmp_path / "measured/fixed-2.jsonl").read_text()) == {"name": "fixed/2", "loss": 1.0}
