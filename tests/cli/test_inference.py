"""The verbs that run a model, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.exit_codes import run
from tests.generation.tiny import STORIES, save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--depth", "0"], "depth: 0"),
        (["--max-new-tokens", "-1"], "max_new_tokens must be a whole number >= 0 (got -1)"),
        (["--temperature", "-1"], "temperature: -1"),
        (["--temperature", "1", "--top-p", "2"], "top_p"),
        (["--dtype", "fp23"], "dtype: unknown"),
        (["--chat"], "no chat template"),
    ],
)
def test_a_mistake_in_generate_is_one_line(
    folder: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("generate", str(folder), "the cat", *words) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("loopwright: ") and printed.err.count("\n") == 1
    assert message in printed.err


def test_a_folder_without_a_tokenizer_or_a_model(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert run("generate", str(tmp_path), "the cat") == 2
    assert "there is no tokenizer" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    for verb in ("inspect", "check"):
        assert run(verb, str(tmp_path / "empty")) == 2
        printed = capsys.readouterr().err
        assert printed.startswith("loopwright: ") and "config.json" in printed and printed.count("\n") == 1


def test_a_dense_model_refuses_a_depth(capsys: pytest.CaptureFixture[str]) -> None:
    if not STORIES.is_dir():
        pytest.skip("stories260K is not there")
    for verb in (["inspect", str(STORIES)], ["generate", str(STORIES), "Once"]):
        assert run(*verb, "--depth", "2") == 2
        assert "no core to loop" in capsys.readouterr().err


def test_options_reach_the_work(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generate", str(folder), "the cat", "--depth", "2", "--max-new-tokens", "3", "--top-k", "4", "--seed", "1") == 0
    assert "depth 2" in capsys.readouterr().err
    assert run("inspect", "huginn-tiny", "depth=3", "--context", "16", "--batch", "2", "--tensors") == 0
    printed = capsys.readouterr().out
    assert "pass of 2 × 16" in printed and "at depth 3" in printed and "core.1.mlp.up_proj.weight" in printed
