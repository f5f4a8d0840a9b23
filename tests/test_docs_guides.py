"""The guides run: their Python blocks, recipes and commands, on tiny models and a small text."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import loopwright as lw
from loopwright.cli import main
from loopwright.schema import read_yaml
from loopwright.training.recipe import make_recipe
from tests.generation.tiny import WORDS, byte_tokenizer

DOCS = Path(__file__).parents[1] / "docs"
SMALL = {"updates: 400": "updates: 2", "updates: 200": "updates: 2", "rows: 32": "rows: 4", "max_steps=20": "max_steps=2",
         "--depths 1,4,8 --batches 1,8": "--depths 1 --batches 1 --prompt-tokens 4 --new-tokens 4"}  # fmt: skip
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the pages name: a dense model, a looped one, texts."""
    monkeypatch.chdir(tmp_path)
    tokenizer = byte_tokenizer()
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "vocab_size": 272}
    dense = lw.LoopedForCausalLM(lw.LoopedConfig(prelude_layers=6, core_layers=0, **sizes))
    for name in ("my-llama", "path/to/llama"):
        lw.save(dense, name, tokenizer)
    lw.save(lw.build("ouro-1.4b-tiny", vocab_size=272), "my-model", tokenizer)
    for name, start in (("train", 0), ("valid", 1)):
        texts = (" ".join(WORDS[(i * 7 + j * (j + start)) % len(WORDS)] for j in range(40)) for i in range(12))
        Path(f"{name}.txt").write_text("\n\n".join(texts))
    return tmp_path


def run(page: str, names: dict[str, Any], *, without: str = "$^", only: str = "") -> int:
    """Runs the blocks of a page in their order and returns how many ran; a YAML block that names its file is written."""
    ran = 0
    for language, code in BLOCK.findall((DOCS / page).read_text()):
        for large, little in SMALL.items():
            code = code.replace(large, little)
        if re.search(without, code) or not re.search(only, code):
            continue
        if language == "python":
            exec(compile(code, page, "exec"), names)
        elif language == "yaml" and (file := re.match(r"# (\S+\.yaml)\n", code)):
            Path(file[1]).write_text(code)
        elif not language:
            for line in re.findall(r"^\$ (loopwright .*)$", code, re.MULTILINE):
                command(line)
        ran += 1
    return ran


def command(line: str) -> None:
    words = [word.strip("'\"") for word in re.findall(r"\"[^\"]*\"|'[^']*'|\S+", re.split(r"\s+#", line)[0])]
    with pytest.raises(SystemExit) as end:
        main(words[1:])
    assert end.value.code == 0, line


@pytest.mark.long
def test_the_page_of_tasks_runs(folder: Path) -> None:
    assert run("how-to.md", {}, without="import peft|experiments|torchrun") >= 12
    assert (folder / "tuned" / "config.json").exists() and (folder / "runs" / "mine" / "eval").is_dir()


@pytest.mark.long
@pytest.mark.parametrize(("page", "blocks"), [("models.md", 2), ("data.md", 1), ("objectives.md", 1), ("retrofit.md", 1)])
def test_the_python_of_a_page_runs(page: str, blocks: int, folder: Path) -> None:
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
    names = {"lw": lw, "ids": ids[:1], "mask": torch.ones_like(ids[:1]), "labels": torch.tensor([1])}
    assert run(page, names, only="(?m)^(import|from|model|head) ") == blocks


@pytest.mark.long
def test_the_adder_of_the_tour_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command("loopwright train addition-longer --toy --out runs/longer")
    assert run("tour.md", {}, only="import loopwright") == 1
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[-3:]] == ["4", "16", "32"]


@pytest.mark.long
def test_adapters_go_into_the_weights_as_the_page_says(folder: Path) -> None:
    """The second block of the page of checkpoints, on the parts of a healed model."""
    source = lw.load("path/to/llama")
    healed = lw.retrofit(source, "healed", prelude=2, core=[2, 3], coda=2, layout="lists")
    lw.save_adapters(healed, "parts", source)
    lw.save(source, "path/to/source", lw.tokenizer("path/to/llama"))
    assert run("checkpoints.md", {"lw": lw}, only="lw.merge") == 1
    command("loopwright generate plain the --max-new-tokens 2")


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "without", "count"),
    [
        ("training.md", "heal-smollm2|runs/heal", 4),
        ("retrofit.md", "stories260[kK]|runs/heal", 2),
        ("evaluation.md", r"--tasks|\./(source|cut|healed)|lm-eval", 7),
    ],
)
def test_the_commands_of_a_page_run(page: str, without: str, count: int, folder: Path) -> None:
    """At test size; left out are those that need a model from elsewhere or an extra, and those that another test runs."""
    Path("heldout.txt").write_bytes(Path("valid.txt").read_bytes())
    with gzip.open("valid.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in Path("valid.txt").read_text().split("\n\n"))
    if page == "evaluation.md":
        for name in ("mine", "demo-stable"):
            command(f"loopwright train demo-stable --toy --out runs/{name}")
    code = "\n".join(code for language, code in BLOCK.findall((DOCS / page).read_text()) if not language)
    lines = re.findall(r"^(?:\$ )?(loopwright .*)$", code.replace("\\\n", " "), re.MULTILINE)
    lines = [line for line in lines if not re.search(without, line)]
    assert len(lines) == count
    for line in lines:
        command(line.replace("train demo-stable seed=1", "train demo-stable --toy seed=1"))


@pytest.mark.parametrize("page", ["training.md", "objectives.md", "retrofit.md", "how-to.md"])
def test_the_settings_of_a_page_are_those_of_a_recipe(page: str) -> None:
    base: dict[str, Any] = {"about": "a", "model": {"kind": "preset", "name": "ouro-1.4b-tiny"}, "data": {"kind": "stories"}}
    base |= {"updates": 1, "batch": 8, "depth": {"kind": "fixed", "depth": 2}, "validate": {"every": 1}}
    settings = [code for language, code in BLOCK.findall((DOCS / page).read_text()) if language == "yaml"]
    assert settings
    for setting in settings:
        for part in re.split(r"\n(?=\w)", setting):  # one key may stand there twice, as examples
            assert make_recipe({**base, **(read_yaml(part, page) or {})}, page)


@pytest.mark.ecosystem
def test_lora_by_peft(folder: Path) -> None:
    pytest.importorskip("peft")
    assert run("how-to.md", {}, only="import peft") == 1
    assert lw.load("my-tuned-model").config.depth == lw.load("my-model").config.depth
