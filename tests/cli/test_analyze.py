"""`loopwright analyze`: numbers, figures and a page; mistakes are one line, exit 2, and nothing is lost."""

import json
import logging
import shutil

import pytest
import torch

from loopwright.checkpoints.source import Source
from loopwright.cli import main
from loopwright.cli.analysis import questions, said_by_depth
from loopwright.model.cost import weight_bytes
from loopwright.training.loop import train
from tests.generation.tiny import save_model, word_tokenizer
from tests.training.runs import small

pytestmark = pytest.mark.usefixtures("few_products", "unlaid")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"), "huginn-tiny", std=0.3)


def run(capsys, *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as done:
        main(["analyze", *map(str, words)])
    printed = capsys.readouterr()
    return int(done.value.code or 0), printed.out, printed.err


@pytest.fixture
def undrawn(monkeypatch):
    """Leaves the figures out, which take most of the time, where a test is about numbers."""
    from loopwright.cli import analysis as analyze

    monkeypatch.setattr(analyze, "write_analysis", lambda metrics, folder, **given: folder / "report.html")


@pytest.mark.parametrize("redrawn", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_page_with_its_numbers_and_figures(folder, tmp_path, capsys, request, redrawn):
    words = (folder, "--prompts", "the cat sat and then", "--depth", 8, "--out", tmp_path / "o")
    code, out, _ = run(capsys, *words)
    assert code == 0 and "memory at batch 1: about" in out and "Is more depth safe?" in out
    numbers = (tmp_path / "o" / "metrics" / "analysis.json").read_bytes()
    found = json.loads(numbers)
    assert found["places"]["steps"] == 8 and found["examples"] == 1
    assert (tmp_path / "o" / "report.html").is_file() and (tmp_path / "o" / "figures" / "cycles.svg").is_file()
    page = (tmp_path / "o" / "report.html").read_bytes()
    if not redrawn:
        request.getfixturevalue("undrawn")
    assert run(capsys, *words)[0] == 0
    assert (tmp_path / "o" / "metrics" / "analysis.json").read_bytes() == numbers
    assert (tmp_path / "o" / "report.html").read_bytes() == page


@pytest.mark.long
def test_the_answers_are_told_before_the_page_is_written(folder, tmp_path, monkeypatch, capsys):
    from loopwright.cli import analysis as analyze

    def full(*given, **more):
        raise OSError("the disk is full")

    monkeypatch.setattr(analyze, "write_analysis", full)
    code, out, err = run(capsys, folder, "--prompts", "the cat sat", "--depth", 4, "--pairs", 0, "--out", tmp_path / "o")
    assert code == 2 and "Is more depth safe?" in out and "the disk is full" in err


def test_a_folder_that_cannot_be_written_is_told_before_weights_are_read(folder, tmp_path, monkeypatch, capsys):
    from loopwright.cli import analysis as analyze

    (tmp_path / "file").touch()
    monkeypatch.setattr(analyze, "open_model", lambda *given, **more: pytest.fail("read"))
    code, _, err = run(capsys, folder, "--prompts", "the cat sat", "--out", tmp_path / "file" / "o")
    assert code == 2 and "file is a file; allowed: a folder" in err


@pytest.mark.long
def test_beside_a_dense_model(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("loopwright.analysis.report.analysis.draw_all", lambda *given: {})
    from tests.cases import noisy
    from tests.generation.tiny import word_tokenizer

    noisy("huginn-tiny").without_adapters().save_pretrained(tmp_path / "dense")
    word_tokenizer().save_pretrained(tmp_path / "dense")
    words = ("--prompts", "the dog ran again", "--depth", 6, "--out", tmp_path / "o", "--compare", tmp_path / "dense", "--ablate")
    code, _, _ = run(capsys, folder, *words)
    assert code == 0 and (tmp_path / "o" / "metrics" / "analysis-dense.json").is_file()
    assert "second layer zeroed" in (tmp_path / "o" / "report.html").read_text()
    code, _, err = run(capsys, tmp_path / "dense", "--prompts", "the dog", "--depth", 128)
    assert code == 2 and "was asked of a dense model" in err
    code, _, err = run(capsys, folder, "--prompts", "the dog", "--compare", folder)
    assert code == 2 and "is looped; allowed: a dense model" in err


@pytest.mark.long
def test_a_runs_own_rows(tmp_path, undrawn, capsys):
    with pytest.raises(SystemExit):
        main(["train", "demo-stable", "--toy", "--out", str(tmp_path / "run")])
    code, _, err = run(capsys, tmp_path / "run", "--prompts", "valid", "--depth", 6, "--examples", 3, "--out", tmp_path / "o")
    assert code == 0, err
    assert json.loads((tmp_path / "o" / "metrics" / "analysis.json").read_text())["examples"] == 3


def test_a_task_is_asked_up_to_where_answers_differ():
    first, second = torch.tensor([5, 6, 7, 1, 8, 9]), torch.tensor([5, 6, 1, 7, 9])
    rows = [(first, torch.tensor([-100, -100, -100, 1, 8, 9])), (second, torch.tensor([-100, -100, 1, 7, 9]))]
    assert questions(rows) == [[5, 6, 7, 1], [5, 6, 1]]  # both answers begin with 1
    assert questions(rows[:1]) == [[5, 6, 7]]
    assert questions([rows[0], rows[0]]) == [[5, 6, 7, 1, 8]] * 2  # there is always a token left to say
    assert questions([(first, first), rows[1]]) == [first.tolist(), second.tolist()]  # text, predicted from its start


def test_what_is_said_by_depth_is_marked_by_the_models_own_depth():
    found = {"answers": {"depth": 2, "tokens": [[2, 3, 4], [4, 4, 4]]}}
    words = word_tokenizer()
    slider = said_by_depth(found, ["long " * 40 + "end", [2, 3]], words)
    assert slider.start == 1 and [[right for _, right in cells] for cells in slider.cells] == [
        [False, True],
        [True, True],
        [False, True],
    ]
    assert slider.rows[0].startswith("… ") and slider.rows[0].endswith(" end") and slider.rows[1] == words.decode([2, 3])


@pytest.mark.long
def test_a_task_and_a_model_without_a_tokenizer_take_text(folder, tmp_path, undrawn, capsys):
    run = train(small({"updates": 1}), tmp_path / "run").folder.path
    for words in ((str(run), "--prompts", "12+34="), (str(folder), "--prompts", "12+34=", "--tokenizer", str(run))):
        with pytest.raises(SystemExit) as caught:
            main(["analyze", *words, "--depth", "2", "--pairs", "0", "--out", str(tmp_path / f"out-{len(words)}")])
        assert caught.value.code == 0 and "1 prompt of up to 6 tokens" in capsys.readouterr().out


@pytest.mark.long
def test_a_run_of_text_is_read_with_the_tokenizer_its_recipe_names(tmp_path, undrawn, capsys):
    from tests.generation.tiny import word_tokenizer

    word_tokenizer().save_pretrained(tmp_path / "words")
    (tmp_path / "text.txt").write_text("the cat sat and then the dog ran again\n\n" * 20)
    recipe = {
        "about": "words", "model": {"kind": "preset", "name": "huginn-tiny"}, "updates": 1, "batch": 2,
        "depth": {"kind": "fixed", "depth": 2},
        "data": {"kind": "text", "files": str(tmp_path / "text.txt"), "valid_files": str(tmp_path / "text.txt"),
                 "tokenizer": str(tmp_path / "words"), "length": 4},
    }  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    with pytest.raises(SystemExit):
        main(["train", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "run")])
    code, _, err = run(capsys, tmp_path / "run", "--prompts", "the cat sat", "--depth", 4, "--out", tmp_path / "o")
    assert code == 0, err


def test_prompts_that_the_dense_model_cannot_take_are_refused_before_anything_is_run(folder, tmp_path, capsys):
    from tests.cases import noisy
    from tests.generation.tiny import word_tokenizer

    noisy("huginn-tiny", max_position_embeddings=2).without_adapters().save_pretrained(tmp_path / "dense")
    word_tokenizer().save_pretrained(tmp_path / "dense")
    words = ("--prompts", "the dog ran again", "--depth", 4, "--out", tmp_path / "o", "--compare", tmp_path / "dense")
    code, out, err = run(capsys, folder, *words)
    assert code == 2 and "4 tokens; the compared model's context holds 2" in err
    assert "memory" not in out and not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--prompts", "the " * 200), "tokens; the model's context holds"),
        (("--prompts", "empty.txt"), "holds no prompt"),
        (("--prompts", "a", "--depth", 0), "depth: 0; allowed"),
        (("--prompts", "gsm8k"), "give --data FOLDER"),
        (("--prompts", "valid"), "holds no run"),
        (("--prompts", "a", "--batch", 0), "batch must be a whole number >= 1 (got 0)"),
        (("--prompts", "a", "--dtype", "fp8"), "dtype: unknown"),
    ],
)
def test_mistakes_are_one_line(folder, tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOOPWRIGHT_DATA", raising=False)
    (tmp_path / "empty.txt").write_text("\n")
    code, _, err = run(capsys, folder, *words)
    assert code == 2 and said in err and len(err.strip().splitlines()) == 1


def test_too_large_a_batch_says_which_would_fit(folder, tmp_path, monkeypatch, capsys):
    from loopwright.cli import analysis as analyze

    (tmp_path / "p.txt").write_text("the cat sat\n" * 8)
    weights = weight_bytes(Source(folder).config, torch.float32)
    words = (folder, "--prompts", tmp_path / "p.txt", "--depth", 4, "--out", tmp_path / "o")
    monkeypatch.setattr(analyze, "open_model", None)  # the weights are not read for it
    for free, said in ((weights + 60_000, "would fit"), (weights - 1, "its weights take about")):
        monkeypatch.setattr(analyze, "free_bytes", lambda device, free=free: free)
        code, _, err = run(capsys, *words)
        assert code == 2 and said in err and ("batch: 8 needs about" in err) == (said == "would fit")


def test_memory_that_runs_out_at_the_weights_is_one_line(folder, tmp_path, monkeypatch, capsys):
    from loopwright.cli import analysis as analyze

    def full(*given: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(analyze, "open_model", full)
    code, _, err = run(capsys, folder, "--prompts", "the cat sat", "--out", tmp_path / "o")
    assert code == 2 and "out of memory while its weights are read" in err and len(err.strip().splitlines()) == 1


def test_it_says_how_many_of_the_prompts_are_taken(folder, tmp_path, monkeypatch, capsys):
    from loopwright.cli import analysis as analyze

    place = tmp_path / "a folder"
    place.mkdir()
    (place / "p.txt").write_text("the cat sat\n" * 5)
    monkeypatch.setattr(analyze, "free_bytes", lambda device: 0)
    for examples, said in ((3, "prompts: 3 of 5, drawn by seed 0"), (5, "")):
        _, out, _ = run(capsys, folder, "--prompts", place / "p.txt", "--examples", examples)
        assert ("drawn by seed" in out) == bool(said) and said in out and f"{examples} prompts of up to" in out


def test_too_many_pairs_say_how_many_would_fit_and_are_stated_first(folder, tmp_path, monkeypatch, capsys):
    from loopwright.cli import analysis as analyze

    monkeypatch.setattr(analyze, "free_bytes", lambda device: 10**9)
    monkeypatch.setattr(analyze, "pair_bytes", lambda config, tokens, *, steps, dtype: steps * 180 * 10**6)
    words = ("--prompts", "the cat sat", "--depth", 9, "--pairs", 32, "--out", tmp_path / "o")
    code, out, err = run(capsys, folder, *words)
    assert code == 2 and "all pairs of layers over 9 steps 1,545 MiB" in out
    assert err.strip().endswith("pairs: 9 steps would need about 1,545 MiB, 953 are free beside the weights; --pairs 5 would fit")
    assert not (tmp_path / "o").exists()


@pytest.mark.slow
def test_no_pairs_and_more_of_them(folder, tmp_path, undrawn, capsys):
    for pairs, steps in ((0, None), (6, 6)):
        code, _, err = run(
            capsys, folder, "--prompts", "the cat sat", "--depth", 8, "--pairs", pairs, "--out", tmp_path / str(pairs)
        )
        found = json.loads((tmp_path / str(pairs) / "metrics" / "analysis.json").read_text())
        assert code == 0, err
        assert found.get("pairs", {}).get("steps") == steps
    assert run(capsys, folder, "--prompts", "a", "--pairs", -1)[2].startswith("loopwright: pairs must be a whole number >= 0")


def test_a_tokenizer_with_a_limit_of_its_own_adds_no_line(folder, tmp_path, monkeypatch, capsys):
    lines: list[str] = []
    heard = logging.Handler()
    heard.emit = lambda record: lines.append(record.getMessage())
    monkeypatch.setattr(logging.getLogger("transformers"), "handlers", [heard])  # it passes nothing on to other loggers
    shutil.copytree(folder, tmp_path / "m")
    settings = json.loads((tmp_path / "m" / "tokenizer_config.json").read_text())
    (tmp_path / "m" / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": 8}))
    code, _, err = run(capsys, tmp_path / "m", "--prompts", "the " * 200)
    assert code == 2 and len(err.strip().splitlines()) == 1
    assert not [line for line in lines if "sequence length" in line]


def test_a_preset_has_nothing_to_look_into(capsys):
    code, _, err = run(capsys, "huginn-tiny", "--prompts", "a")
    assert code == 2 and "is a preset" in err
