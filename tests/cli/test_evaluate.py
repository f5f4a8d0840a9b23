"""`evaluate` as a verb: a run, a model on a recipe's data, files and figures."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import yaml

import loopwright as lw
from loopwright import cli, measuring
from loopwright.checkpoints.source import Source, load
from loopwright.cli import results as module
from loopwright.cli.results import evaluate, name_texts
from loopwright.cli.runs import train
from loopwright.evaluation.by_depth import SweepReport
from loopwright.evaluation.likelihood import NOT_A_LIKELIHOOD
from loopwright.evaluation.text import CONTEXT, HeldOut
from tests.generation.tiny import save_model

pytestmark = pytest.mark.usefixtures("unlaid")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "toy"
    train("demo-stable", ["data.longer=[4]", "data.test=12"], out=str(folder), toy=True)
    return folder


@pytest.mark.long
def test_a_run_is_measured_at_every_depth(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports = evaluate(str(run), depths="1:6", batch=5)
    assert list(reports.reports) == ["test", "digits-4"]
    report = reports["test"]
    assert report.depth == (1, 2, 3, 4, 5, 6) and report.rows == 12 and report.disagreements == 0
    assert [check.depth for check in report.decoded] == [1, 4, 6]
    assert SweepReport.load(run / "eval" / "test.json") == report
    printed = capsys.readouterr().out
    assert "exact match" in printed and "exact-by-depth.svg" in printed and "split-by-depth.svg" in printed
    assert "<svg" in (run / "figures" / "exact-by-depth.svg").read_text()


@pytest.mark.long
def test_a_model_on_the_data_of_a_recipe(run: Path, tmp_path: Path) -> None:
    folder = lw.save(lw.load(run), tmp_path / "model")
    with pytest.raises(ValueError, match=r"holds no run \(no recipe.yaml\) with data of its own; give data= \(--data RECIPE"):
        evaluate(str(folder))
    reports = evaluate(str(folder), data=str(run / "recipe.yaml"), depths="2", rows=4, splits=["valid"], out=str(tmp_path / "here"))
    assert reports["valid"].rows == 4 and (tmp_path / "here" / "eval" / "valid-recipe-rows-4.json").is_file()
    assert evaluate(str(run), depths="2", rows=4, splits=["valid"])["valid"].loss == reports["valid"].loss


@pytest.mark.long
def test_a_checkpoint_is_measured_as_its_run_is(run: Path, tmp_path: Path) -> None:
    given = {"depths": "2", "rows": 4, "splits": ["valid"], "out": str(tmp_path)}
    found = [evaluate(str(source), **given)["valid"].loss for source in (run / "checkpoints" / "00000002", run)]
    assert found[0] == found[1]


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for kind in ("eval", "figures") for path in (folder / kind).iterdir()}


@pytest.mark.long
def test_a_look_at_few_rows_replaces_nothing(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"out": str(tmp_path / "out"), "decode": False}
    evaluate(str(run), depths="1:3", **given)
    before = files_of(tmp_path / "out")
    few = evaluate(str(run), depths="1:3", rows=3, **given)["test"]
    after = files_of(tmp_path / "out")
    assert before.items() <= after.items() and few.rows == 3
    assert set(after) - set(before) >= {"test-rows-3.json", "exact-by-depth-rows-3.svg"}
    assert SweepReport.load(tmp_path / "out" / "eval" / "test-rows-3.json") == few
    assert "test-rows-3.json" in capsys.readouterr().out
    evaluate(str(run), depths="1:3", splits=["valid"], checkpoint="2", **given)
    new = set(files_of(tmp_path / "out")) - set(after)
    assert new == {"valid-update-2.json", "exact-by-depth-valid-update-2.svg"}, "nor does another split or checkpoint"
    assert evaluate(str(run), depths="1:3", rows=10**6, **given)["test"].rows == 12  # all there are


@pytest.mark.long
def test_fewer_depths_do_not_replace_more(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"out": str(tmp_path / "out"), "decode": False, "splits": ["test"]}
    evaluate(str(run), depths="1:3", **given)
    before = files_of(tmp_path / "out")
    with monkeypatch.context() as watched:
        watched.setattr(measuring, "sweep", lambda *a, **k: pytest.fail("measured"))
        with pytest.raises(ValueError, match=r"test.json: holds other results \(2 of its 3 depths .*--overwrite replaces them"):
            evaluate(str(run), depths="2", **given)
    assert files_of(tmp_path / "out") == before
    assert evaluate(str(run), depths="2", overwrite=True, **given)["test"].depth == (2,)
    assert SweepReport.load(tmp_path / "out" / "eval" / "test.json").depth == (2,)


def test_numbers_are_shown_before_they_are_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*given: object, **more: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(SweepReport, "save", full)
    with pytest.raises(OSError, match="the disk is full"):
        evaluate(str(run), depths="2", splits=["test"], decode=False, out=str(tmp_path / "out"))
    assert "exact match" in capsys.readouterr().out


def test_a_run_that_cannot_be_written_is_told_before_the_work(
    run: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(verb: str, *folders: Path) -> None:
        raise OSError(f"{verb}: cannot write into {folders[0]}")

    monkeypatch.setattr(module, "need_writable", closed)
    monkeypatch.setattr(Source, "model", lambda *a, **k: pytest.fail("loaded"))
    with pytest.raises(OSError, match=r"evaluate: cannot write into .*eval"):
        evaluate(str(run))
    with pytest.raises(OSError, match=r"evaluate: cannot write into .*eval"):
        evaluate(str(save_model(tmp_path / "model")), texts=[str(texts / "plain.txt")])


@pytest.mark.long
def test_answers_in_place_are_not_decoded(tmp_path: Path) -> None:
    train("addition-longer", [], out=str(tmp_path / "run"), toy=True)
    reports = evaluate(str(tmp_path / "run"), depths="1:3").reports
    assert "length-12" in reports and all(report.decoded == () and report.exact[0] is not None for report in reports.values())


@pytest.mark.long
def test_what_is_asked_wrongly_is_said(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="split: unknown 'tset'; did you mean 'test'"):
        evaluate(str(run), splits=["tset"])
    with pytest.raises(ValueError, match="depths"):
        evaluate(str(run), depths="one")
    with pytest.raises(ValueError, match="checkpoint: 'first'"):
        evaluate(str(run), checkpoint="first")
    with pytest.raises(ValueError, match="data: its tokenizer is not that of"):
        evaluate(str(run), data="universal-act", depths="1")
    longer = yaml.safe_load((run / "recipe.yaml").read_text())
    longer["data"]["digits"] = 100
    (tmp_path / "longer.yaml").write_text(yaml.safe_dump(longer))
    with pytest.raises(ValueError, match="learned positions end at"):
        evaluate(str(run), data=str(tmp_path / "longer.yaml"), depths="1")


# texts


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    (folder / "plain.txt").write_text("the cat sat and the dog ran until the wheel turned again " * 3)
    (folder / "lines.jsonl").write_text('{"body": "the ring turned once more"}\n{"body": "a cat and a dog"}\n')
    return folder


def test_the_held_out_loss_of_texts(texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_model(tmp_path / "model")
    reports = evaluate(str(model), texts=[str(texts / "plain.txt")], context=8, depths="1,3", out=str(tmp_path / "out"))
    report = reports["plain"]
    assert report.depth == (1, 3) and report.context == 8 and report.likelihood and report.documents == 1
    assert HeldOut.load(tmp_path / "out" / "eval" / "text-plain.json") == report
    printed = capsys.readouterr().out
    assert printed.index("causality: passed") < printed.index("bits per byte")
    lines = evaluate(str(model), texts=[f"b={texts / 'lines.jsonl'}"], field="body", rows=1, honest=3, out=str(tmp_path / "out"))
    assert lines["b"].passages == 1 and lines["b"].depth == (model_depth(model),) and lines["b"].honest is not None


@pytest.mark.slow
def test_texts_replace_nothing_but_their_like(texts: Path, tmp_path: Path) -> None:
    model, text = str(save_model(tmp_path / "model")), [str(texts / "plain.txt")]
    given = {"context": 8, "out": str(tmp_path / "out")}
    evaluate(model, texts=text, depths="1,3", **given)
    before = (tmp_path / "out" / "eval" / "text-plain.json").read_bytes()
    evaluate(model, texts=text, depths="1,3", rows=2, **given)
    assert HeldOut.load(tmp_path / "out" / "eval" / "text-plain-rows-2.json").passages == 2
    other = str(save_model(tmp_path / "other"))
    for changed, reason in (
        ({"depths": "1"}, "1 of its 2 depths"),
        ({"depths": "1,3", "context": 9}, "its fingerprint is"),
        ({"depths": "1,3", "dtype": "bf16"}, "its dtype is float32, now bfloat16"),
    ):
        with pytest.raises(ValueError, match=rf"text-plain.json: holds other results \({reason}"):
            evaluate(model, texts=text, **given | changed)
    with pytest.raises(ValueError, match=r"holds other results \(they are of .*model\); --overwrite replaces them"):
        evaluate(other, texts=text, depths="1,3", **given)
    assert (tmp_path / "out" / "eval" / "text-plain.json").read_bytes() == before
    evaluate(other, texts=text, depths="1", overwrite=True, **given)
    assert HeldOut.load(tmp_path / "out" / "eval" / "text-plain.json").depth == (1,)


def test_each_model_has_its_own_folder(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        evaluate(str(save_model(tmp_path / name)), texts=[str(texts / "plain.txt")], context=8, depths="1")
    assert all((tmp_path / f"runs/evaluate-{name}/eval/text-plain.json").is_file() for name in ("a", "b"))


def test_fewer_rows_are_drawn_from_the_whole_text(tmp_path: Path) -> None:
    model, file = save_model(tmp_path / "model"), tmp_path / "long.jsonl"
    file.write_text("".join(json.dumps({"text": "the cat sat " * (40 if i == 0 else 1)}) + "\n" for i in range(40)))
    report = evaluate(str(model), texts=[str(file)], context=6, depths="1", rows=12, out=str(tmp_path / "out"))["long"]
    assert report.passages == 12 and report.documents > 4  # the first 12 are all of the first document


def test_numbers_say_whose_they_are(texts: Path, tmp_path: Path) -> None:
    model, text = save_model(tmp_path / "model"), [str(texts / "plain.txt")]
    evaluate(str(model), texts=text, context=8, depths="1", dtype="bf16", out=str(tmp_path / "out"))
    saved = json.loads((tmp_path / "out" / "eval" / "text-plain.json").read_text())
    assert (saved["source"], saved["dtype"], saved["seed"]) == (str(model), "bfloat16", 0)
    older = {name: value for name, value in saved.items() if name not in ("source", "dtype", "seed")}
    (tmp_path / "older.json").write_text(json.dumps(older))
    assert HeldOut.load(tmp_path / "older.json").source == "", "a file from before says nothing"


@pytest.mark.long
def test_a_context_is_one_that_the_model_has(texts: Path, tmp_path: Path) -> None:
    model, text = str(save_model(tmp_path / "model")), [str(texts / "plain.txt")]
    room = load(model).config.max_position_embeddings
    with pytest.raises(ValueError, match=rf"context must be from 2 to {room}, the positions of the model \(got {room + 1}\)"):
        evaluate(model, texts=text, context=room + 1, out=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    assert evaluate(model, texts=text, context=room, depths="1", out=str(tmp_path / "out"))["plain"].context == room
    assert room < CONTEXT, "left out, it is the model's own where that is less"
    assert evaluate(model, texts=text, depths="1", out=str(tmp_path / "out"))["plain"].context == room


def model_depth(folder: Path) -> int:
    return load(folder).config.depth


@pytest.mark.long
def test_a_model_that_sees_the_future_is_refused_or_marked(texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = {"kind": "controller", "rank": 4, "style": 8, "pooling": "sequence", "leak_future": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = str(save_model(tmp_path / "model", "ouroboros-qwen2.5-3b-tiny", adapters=[spec]))
        given = {"context": 8, "depths": "2", "out": str(tmp_path / "out")}
        with pytest.raises(ValueError, match="not causal"):
            evaluate(model, texts=[str(texts / "plain.txt")], **given)
        assert not (tmp_path / "out").exists() and "loss" not in capsys.readouterr().out
        with pytest.raises(ValueError, match="not causal"):  # on the data of a recipe too
            evaluate(model, data="demo-stable", depths="1")
        report = evaluate(model, texts=[str(texts / "plain.txt")], teacher_forced=True, **given)["plain"]
    assert not report.likelihood and NOT_A_LIKELIHOOD in capsys.readouterr().out


def test_texts_have_names_and_what_is_wrong_is_told(texts: Path, tmp_path: Path) -> None:
    assert name_texts(["a/b.jsonl.gz", "in=c.txt", "x=y=z.txt"]) == {"b": "a/b.jsonl.gz", "in": "c.txt", "x": "y=z.txt"}
    with pytest.raises(ValueError, match="two are called 'b'"):
        name_texts(["a/b.txt", "b=c.txt"])
    with pytest.raises(ValueError, match="gives no name"):
        name_texts(["a/*.txt"])
    model = str(save_model(tmp_path / "model"))
    with pytest.raises(ValueError, match="no file matches"):
        evaluate(model, texts=[str(texts / "absent.txt")])
    with pytest.raises(ValueError, match=r"honest must be a whole number >= 0 \(got -1\)"):
        evaluate(model, texts=[str(texts / "plain.txt")], honest=-1)


def test_the_words_of_texts_belong_together(run: Path) -> None:
    for given in ({"split": ["test"]}, {"data": "demo-stable"}, {"decode": False}):
        with pytest.raises(ValueError, match=f"text: given with {next(iter(given)).replace('split', 'splits')}, which does not go"):
            cli.evaluate(str(run), text=["a.txt"], **given)
    for given in ({"honest": 3}, {"teacher_forced": True}, {"tokenizer": "x"}, {"context": 512}, {"field": "text"}):
        with pytest.raises(ValueError, match=f"{next(iter(given))}: belongs to text( or tasks)?, which is not given"):
            cli.evaluate(str(run), **given)


def test_nothing_that_was_asked_is_dropped(run: Path, texts: Path, tmp_path: Path) -> None:
    model, text = str(save_model(tmp_path / "model")), [str(texts / "plain.txt")]
    for checkpoint in ("last", "7"):
        with pytest.raises(ValueError, match=rf"checkpoint: {checkpoint} belongs to a run, and .*model holds none"):
            evaluate(model, texts=text, checkpoint=checkpoint, out=str(tmp_path / "out"))
    with pytest.raises(ValueError, match=r"batch must be a whole number >= 1 \(got 0\)"):
        evaluate(model, texts=text, batch=0, out=str(tmp_path / "out"))
    with pytest.raises(ValueError, match=r"batch must be a whole number >= 1 \(got 0\)"):
        evaluate(str(run), batch=0, depths="1", splits=["valid"], out=str(tmp_path / "out"))


def test_what_can_be_told_before_a_model_is_loaded_is(
    run: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, text = str(save_model(tmp_path / "model")), [str(texts / "plain.txt")]
    monkeypatch.setattr(Source, "model", lambda *a, **k: pytest.fail("loaded"))
    for given, complaint in (
        ({"rows": 0}, r"rows must be a whole number >= 1 \(got 0\)"),
        ({"batch": -1}, r"batch must be a whole number >= 1 \(got -1\)"),
        ({"depths": "0"}, "depths must be .*got '0'"),
        ({"out": text[0]}, r"evaluate: .*plain.txt is a file; allowed: a new folder"),
        ({"out": f"{text[0]}/below"}, r"out: .*plain.txt is a file; allowed: a folder"),
    ):
        with pytest.raises(ValueError, match=complaint):
            evaluate(model, texts=text, **given)
        with pytest.raises(ValueError, match=complaint):
            evaluate(str(run), **given)
    with pytest.raises(ValueError, match="context must be from 2 to"):
        evaluate(model, texts=text, context=1)
    with pytest.raises(ValueError, match="no file matches"):
        evaluate(model, texts=["absent.txt"])
    with pytest.raises(ValueError, match="evaluate: 'asura' is a preset, which has no trained weights"):
        evaluate("asura", texts=text)
