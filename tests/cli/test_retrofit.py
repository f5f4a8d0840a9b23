"""`retrofit` as a verb: what it prints, what it writes, and one line for each mistake, after which nothing is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

import loopwright as lw
from loopwright.cli.conversion import describe_start, read_ids, retrofit, spelled
from loopwright.retrofitting.systems import make_plan
from tests.checkpoints.dense import IDS, source
from tests.cli.exit_codes import run
from tests.generation.tiny import STORIES, WORDS, few_words, word_tokenizer


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lw.save(source(), tmp_path_factory.mktemp("dense"), word_tokenizer())


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text(" ".join(WORDS * 40))
    return file


@pytest.mark.long
def test_a_model_is_converted_written_and_described(dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run("retrofit", str(dense), str(tmp_path / "out"), "--prelude", "1", "adapters.rank=4", "adapters.style=8", "depth=3") == 0
    )
    printed = capsys.readouterr().out
    for line in (
        "the 6 layers of the source", "dropped", "3 times", "parts, trainable", "parts, frozen bases", "adapters.0.q_proj",
        "at every depth it starts as the truncated model", "to the truncated model: 0.0e+00 at depth 1, 0.0e+00 at depth 3",
    ):  # fmt: skip
        assert line in printed, line
    model = lw.load(tmp_path / "out")
    same = lw.retrofit(source(), prelude=1, adapters={"rank": 4, "style": 8}, depth=3)
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, same(IDS).logits)
    assert lw.tokenizer(tmp_path / "out").encode("the cat") == lw.tokenizer(dense).encode("the cat")
    assert lw.check(model).ok
    card = (tmp_path / "out" / "README.md").read_text()
    command = f"loopwright retrofit {dense.name} out --prelude 1 adapters.rank=4 adapters.style=8 depth=3"
    assert f"Made from the dense model `{dense.name}` by `{command}`; not trained since." in card
    assert str(tmp_path) not in card and str(dense) not in card


def test_from_python_the_card_shows_no_command(dense: Path, tmp_path: Path) -> None:
    retrofit(str(dense), str(tmp_path / "out"), ["gate-only"])
    assert f"Made from the dense model `{dense.name}`; not trained since." in (tmp_path / "out" / "README.md").read_text()


def test_explicit_lists_another_system_and_a_half_dtype(dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--prelude", "0-1", "--core", "2,4", "--coda", "5,", "--dtype", "bf16", "plain-loop", "depth=2")
    assert run("retrofit", str(dense), str(tmp_path / "out"), *words) == 0
    printed = capsys.readouterr().out
    assert "2, 4" in printed and "at depth 1 it starts as the truncated model" in printed
    model = lw.load(tmp_path / "out", "auto")
    assert model.dtype == torch.bfloat16 and model.config.core_layers == 2


def test_a_lone_number_for_the_core_is_said_to_be_a_layer(dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layouts = []
    for core, said in (("2", True), ("2-2", False), ("2,", False)):
        words = ("plain-loop", "--prelude", "2", "--core", core, "--coda", "2")
        assert run("retrofit", str(dense), str(tmp_path / "out"), *words) == 0
        printed = capsys.readouterr().out
        assert ("core: layer 2 alone, counted from 0 (--core lists layers" in printed) == said
        layouts.append(printed[printed.index("the 6 layers") :].split("parameters")[0])
    assert layouts[0] == layouts[1] == layouts[2]


def test_what_was_found_is_shown_before_it_is_written(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*given: object, **more: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(lw.LoopedForCausalLM, "save_pretrained", full)
    assert run("retrofit", str(dense), str(tmp_path / "out"), "plain-loop") == 2
    printed = capsys.readouterr()
    assert "largest difference of logits" in printed.out and "the disk is full" in printed.err


def test_changed_parts_void_the_word(dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("retrofit", str(dense), str(tmp_path / "out"), "gate-only", "gate.kind=learned", "depth=2") == 0
    assert "the stated initial equality no longer applies" in capsys.readouterr().out
    assert run("retrofit", str(dense), str(tmp_path / "out"), "retrofit") == 0
    assert "equals no plain model at the start" in capsys.readouterr().out, "and a model folder is replaced"


@pytest.mark.parametrize(
    ("words", "stale", "said"),
    [
        (["refiner", "layout.last=2", "adapters.rank=2"], "its last layer", "at every depth it starts as the full model"),
        (["upcycle", "layout.times=3"], "twice over", "at depth 1 it starts as the truncated model"),
        (["healed", "depth=4", "adapters.rank=2"], "not looped", "at depth 1 it starts as the truncated model"),
        (["repeat", "layout.first=1", "layout.last=3"], "middle third", "what it equals is said of the system as named alone"),
        (["repeat", "depth=1"], "equals no plain model", "to the full model: 0.0e+00 at depth 1"),
        (["relaxed", "adapters.rank=4"], "equals no plain model", "what it equals is said of the system as named alone"),
    ],
)
def test_what_describes_a_system_is_not_said_of_a_changed_one(
    dense: Path, tmp_path: Path, words: list[str], stale: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("retrofit", str(dense), str(tmp_path / "out"), *words) == 0
    printed = capsys.readouterr().out
    assert stale not in printed and f"{words[0]}, changed: " in printed and said in printed
    assert stale in describe_start(words[0], make_plan(words[0], {})), "and it is said of the system as named"


def test_a_core_that_runs_once_says_so(dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("retrofit", str(dense), str(tmp_path / "out"), "healed", "adapters.rank=2") == 0
    assert "1 times" not in capsys.readouterr().out


def test_a_search_takes_the_best_layout(dense: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("gate-only", "--search", str(text), "--tokens", "300", "depth=2")
    assert run("retrofit", str(dense), str(tmp_path / "out"), *words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "scored on 256 tokens" in lines[0] + lines[1] and "full" in lines[0] + lines[1]
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    scored, layout = rows[: [len(row) for row in rows].index(3)], [row for row in rows if len(row) == 3]
    assert scored[0][:3] == [row[1] for row in layout[:3]], "the first of the table is what was made"
    assert [float(row[4]) for row in scored] == sorted(float(row[4]) for row in scored)
    assert run("retrofit", str(dense), str(tmp_path / "out"), *words, "--search-by", "turn") == 0
    capsys.readouterr()
    assert run("retrofit", str(dense), str(tmp_path / "out"), *words, "--search-depth", "3") == 0
    deep = capsys.readouterr().out
    assert "depth 3" in deep and deep.splitlines()[4:6] != lines[4:6], "other losses than once each"


def test_weighted_bases_read_their_text(dense: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("static", "adapters.rank=4", "bases=weighted", "depth=2")
    assert run("retrofit", str(dense), str(tmp_path / "out"), *words) == 2
    assert "there is no text" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert run("retrofit", str(dense), str(tmp_path / "out"), *words, "--text", str(text)) == 0


def test_stories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not STORIES.is_dir():
        pytest.skip("stories260K is not there")
    retrofit(str(STORIES), str(tmp_path / "out"), ["refiner", "adapters.rank=8", "depth=2"])
    assert "it starts as the full model" in capsys.readouterr().out
    assert run("generate", str(tmp_path / "out"), "Once upon a time", "--max-new-tokens", "3") == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ouroborus"], "did you mean 'ouroboros'"),
        (["static", "gate-only"], "static and gate-only are given as systems"),
        (["static", "dept=3"], "did you mean 'depth'"),
        (["static"], "rank 32 on k_proj; allowed: at most 16"),
        (["gate-only", "--core", "9"], "core holds layer 9; allowed: 0 to 5"),
        (["gate-only", "--core", "2-x"], "'2-x' is not a list of layers"),
        (["gate-only", "--core", "4,2"], "ascending order"),
        (["gate-only", "--prelude", "4"], "layer 3 is in the prelude and in the core"),
        (["gate-only", "--search", "./no/file.txt"], "no/file.txt"),
        (["refiner", "adapters.rank=4", "--search", "TEXT"], "search: the layout keeps"),
        (["gate-only", "--search", "TEXT", "--search-by", "lost"], "by is 'lost'"),
        (["gate-only", "--search", "TEXT", "--tokens", "1"], "tokens must be a whole number >= 2 (got 1)"),
        (["gate-only", "--device", "tpu"], "device: unknown 'tpu'"),
        (["gate-only", "--core", "3-1,2"], "'3-1' in '3-1,2' goes down"),
        (["gate-only", "--search-by", "turn"], "--search-by: 'turn', and nothing is searched"),
        (["gate-only", "--search", "TEXT", "--search-depth", "0"], "--search-depth must be a whole number >= 1 (got 0)"),
        (["gate-only", "--search", "TEXT", "--search-depth", "2000000000"], "--search-depth must be at most 1,024"),
        (["gate-only", "--search-depth", "2"], "--search-depth: 2, and no loss is searched"),
        (["gate-only", "--search", "TEXT", "--search-by", "turn", "--search-depth", "2"], "no loss is searched"),
        (["gate-only", "--tokens", "9"], "--tokens: 9, and there is no text"),
        (["gate-only", "--text", "TEXT"], "--text: given, and bases are 'none'; allowed: with bases=weighted"),
        *[
            (
                ["gate-only", "--search", "TEXT", f"start={start}"],
                f"--search: given, and start is '{start}'; allowed: with start=selected",
            )
            for start in ("average", "stepwise")
        ],
        (["gate-only", "--core", "2,2"], "core is [2, 2]; allowed: layers in ascending order, each once"),
        (["gate-only", "adapters=[low-rank]"], "adapters"),
        (["adapters.rank=0"], "rank is 0; allowed: a whole number from 1"),
        (["adapters.rank=4", "adapters.alpha=0"], "alpha is 0; allowed: above 0"),
        (["gate-only", "--core", "2", "core=3"], "--core and core= are both given"),
        (["gate-only", "adapters.rank=4"], "gate-only has no adapter"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    dense: Path, text: Path, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(text) if word == "TEXT" else word for word in words]
    before = sorted(tmp_path.iterdir())
    assert run("retrofit", str(dense), str(tmp_path / "out"), *words) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("loopwright: ") and printed.err.count("\n") == 1 and message in printed.err
    assert sorted(tmp_path.iterdir()) == before


def test_the_source_is_never_written_over(dense: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {file.name: file.read_bytes() for file in dense.iterdir()}
    assert run("retrofit", str(dense), str(dense / "."), "gate-only") == 2
    assert "is the source itself; allowed: another folder" in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in dense.iterdir()} == before


def broken(dense: Path, folder: Path, **changes: object) -> Path:
    """A copy of a folder with fields of its config changed."""
    folder.mkdir()
    for file in dense.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "manifest.json").unlink(missing_ok=True)  # somebody else's folder
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, **changes}))
    return folder


def test_sources_that_cannot_be_converted(dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = {
        "no tokenizer": (broken(dense, tmp_path / "mute"), "there is no tokenizer"),
        "quantised": (
            broken(dense, tmp_path / "coarse", model_type="llama", quantization_config={"quant_method": "gptq"}),
            "the weights are quantised (gptq)",
        ),
        "unknown family": (broken(dense, tmp_path / "odd", model_type="gemma9"), "model_type is 'gemma9'"),
        "no folder": (tmp_path / "nothing", "no such folder"),
    }
    (tmp_path / "mute" / "tokenizer.json").unlink()
    assert run("retrofit", "huginn", str(tmp_path / "out")) == 2
    assert "'huginn' is a preset, which has no trained weights" in capsys.readouterr().err
    for name, (folder, message) in cases.items():
        assert run("retrofit", str(folder), str(tmp_path / "out"), "gate-only") == 2
        printed = capsys.readouterr().err
        assert message in printed and printed.count("\n") == 1, name
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_source_whose_weights_are_not_finite_is_refused(
    value: float, dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = lw.load(dense)
    with torch.no_grad():
        model.prelude[3].mlp.up_proj.weight[2, 1:3] = value
    lw.save(model, tmp_path / "source", lw.tokenizer(dense))
    assert run("retrofit", str(tmp_path / "source"), str(tmp_path / "out")) == 2
    said = "retrofit: prelude.3.mlp.up_proj.weight of the source holds 2 values that are not finite (nan or inf)"
    assert said in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_logits_that_are_not_finite_are_not_written(dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = lw.load(dense)
    with torch.no_grad():
        model.embed_tokens.weight.mul_(60_000)
        model.lm_head.weight.mul_(60_000)
    lw.save(model, tmp_path / "source", lw.tokenizer(dense))
    words = ("retrofit", str(tmp_path / "source"), str(tmp_path / "out"), "gate-only", "--dtype", "float16")
    assert run(*words) == 2
    printed = capsys.readouterr().err
    assert "not finite" in printed and printed.count("\n") == 1 and not (tmp_path / "out").exists()


def test_a_full_disk_is_one_line(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*given: object, **options: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: Disk quota exceeded (os error 122)")

    monkeypatch.setattr(lw.LoopedForCausalLM, "save_pretrained", full)
    assert run("retrofit", str(dense), str(tmp_path / "out"), "gate-only") == 2
    printed = capsys.readouterr().err
    assert "out: the disk quota is used up" in printed and "what stood there is unharmed" in printed
    assert printed.count("\n") == 1 and list(tmp_path.iterdir()) == []


def test_a_text_outside_the_vocabulary_is_one_line(
    dense: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lw.save(lw.load(dense), tmp_path / "source", few_words())
    for words in (("gate-only", "--search", str(text)), ("static", "adapters.rank=4", "bases=weighted", "--text", str(text))):
        assert run("retrofit", str(tmp_path / "source"), str(tmp_path / "out"), *words) == 2
        printed = capsys.readouterr().err
        assert "text.txt" in printed and "no tokens in the model's tokenizer" in printed and "give a text" in printed
        assert printed.count("\n") == 1 and not (tmp_path / "out").exists()


def test_words_and_rows(text: Path) -> None:
    assert spelled([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8" and spelled([]) == "none" and spelled([3]) == "3"
    assert read_ids(str(text), word_tokenizer(), 600).shape == (2, 256)
    assert read_ids(str(text), word_tokenizer(), 100).shape == (1, 100)
