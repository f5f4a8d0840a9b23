"""The verbs as functions: what they print, and that what they print is true."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import loopwright as lw
from loopwright import commands
from loopwright.evaluate import conformance
from loopwright.evaluate.conformance import CheckReport, CheckRow
from loopwright.generate.depths import next_token_by_depth
from loopwright.generate.stream import Sampling
from loopwright.model.presets import PRESETS
from tests.generate.tiny import STORIES, save_model, word_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), chat=True)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("ouro-1.4b", ["1,434,652,673", "786,432"]),
        ("ouro-2.6b", ["2,667,974,657"]),
        ("huginn", ["3,564,976,800"]),
        ("retrofit-tinyllama", ["844,171,264"]),
        ("retrofit-olmo2-1b", ["1,359,071,232"]),
        ("retrofit-llama-1b", ["1,385,228,288"]),
        ("ouroboros-qwen2.5-3b", ["692,864", "8,390,656", "131,072"]),
    ],
)
def test_inspect_prints_the_known_numbers(name: str, numbers: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    commands.inspect(name, dtype="bf16")
    printed = capsys.readouterr().out
    for number in numbers:
        assert f" {number} " in printed


def test_inspect_as_json_says_what_the_tables_say(capsys: pytest.CaptureFixture[str]) -> None:
    commands.inspect(
        "ouroboros-qwen2.5-3b-tiny", depth=5, context=64, batch=2, dtype="fp16", policy="share(2)", tensors=True, as_json=True
    )
    facts = json.loads(capsys.readouterr().out)
    assert facts["model"] == "ouroboros-qwen2.5-3b-tiny"
    assert (facts["depth"], facts["context"], facts["batch"], facts["dtype"]) == (5, 64, 2, "float16")
    assert facts["parameters"]["bases"]["trainable"] == 0
    model = lw.build("ouroboros-qwen2.5-3b-tiny")
    assert facts["parameters"]["total"]["unique"] == sum(p.numel() for p in model.parameters())
    assert facts["bytes"]["weights"] == 2 * facts["parameters"]["total"]["unique"]
    # 2 prelude, 2 coda and 1 core layer × 2 shared steps; 2 key heads of 8 numbers
    assert facts["bytes"]["cache"]["keys and values"] == 6 * 2 * 16 * 2 * (2 * 64)
    assert facts["bytes"]["cache"]["running sums"] == 2 * 16 * 4 * (2 * 64)
    assert facts["flops"]["training_pass"] == 3 * facts["flops"]["pass"]["total"] == 3 * 128 * facts["flops"]["token"]["total"]
    assert [row["name"] for row in facts["tensors"]] == list(model.state_dict())


def test_inspect_of_a_folder_and_of_changes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands.inspect(str(folder), as_json=True)
    same = json.loads(capsys.readouterr().out)
    commands.inspect("huginn-tiny", as_json=True)
    assert {**same, "model": ""} == {**json.loads(capsys.readouterr().out), "model": ""}
    for source in (str(folder), "huginn-tiny"):
        commands.inspect(source, ["core_layers=3", "injection.kind=add"], as_json=True)
        changed = json.loads(capsys.readouterr().out)
        assert changed["parameters"]["core"]["unique"] == 1.5 * same["parameters"]["core"]["unique"]
        assert changed["parameters"]["injection"]["unique"] == 0


def test_inspect_prints_every_tensor(capsys: pytest.CaptureFixture[str]) -> None:
    commands.inspect("huginn-tiny", tensors=True)
    printed = capsys.readouterr().out
    for name in lw.build("huginn-tiny").state_dict():
        assert name in printed
    assert "lm_head.weight = embed_tokens.weight" in printed


def test_inspect_reads_no_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "load", lambda *args, **kwargs: pytest.fail("it loaded the model"))
    commands.inspect(str(folder))


def test_a_folder_wins_over_a_preset_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert commands.is_preset("huginn") and commands.is_preset("huginn-tiny")
    (tmp_path / "huginn").mkdir()
    assert not commands.is_preset("huginn")
    assert not commands.is_preset("owner/name")
    with pytest.raises(ValueError, match="did you mean 'asura'"):
        commands.is_preset("asure-tiny")


def test_words_for_a_model() -> None:
    assert commands.describe(lw.preset("huginn"), 32) == (
        "2 prelude + 4 core × 32 + 2 coda layers; width 5280, 55 heads, 65536 tokens; state noise; injection concat; end norm last"
    )
    assert "up to 3 steps" in commands.describe(lw.preset("asura"), 3)
    assert commands.stacks(lw.LoopedConfig(prelude_layers=5, core_layers=0, depth=1), 1) == "dense, 5 layers"
    assert [commands.readable(n) for n in (12, 2048, 3 << 29, 5 << 40)] == ["12 B", "2.0 KiB", "1.5 GiB", "5.0 TiB"]


def test_every_preset_has_a_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(commands.SOURCES) == list(PRESETS)
    commands.presets()
    printed = capsys.readouterr().out
    for name, source in commands.SOURCES.items():
        assert f" {name} " in printed and source in printed
    assert "3,564,976,800" in printed


def test_check_of_a_preset_says_that_it_is_the_small_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.check("relaxed")
    printed = capsys.readouterr().out
    assert "small form, relaxed-tiny" in printed and "causality" in printed and "0 failed" in printed


def test_check_of_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.check(str(folder))
    printed = capsys.readouterr().out
    assert "small form" not in printed and f"{folder}: " in printed


def test_a_failed_check_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    report = CheckReport((CheckRow("causality", False, "token 3 moved"), CheckRow("depth", None, "none")))
    monkeypatch.setattr(conformance, "check", lambda *args, **kwargs: report)
    assert not commands.check("asura-tiny")
    assert "0 passed, 1 failed, 1 not offered" in capsys.readouterr().out
    assert not commands.demo()
    printed = capsys.readouterr().out
    assert printed.count("causality: token 3 moved") == len(PRESETS)


def test_demo_checks_every_preset_small(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[int] = []

    def check(model: torch.nn.Module, *, progress: object) -> CheckReport:
        seen.append(model.config.hidden_size)
        assert torch.get_num_threads() == 1
        return CheckReport((CheckRow("causality", True, ""),))

    monkeypatch.setattr(conformance, "check", check)
    assert commands.demo()
    assert seen == [32] * len(PRESETS)
    printed = capsys.readouterr().out
    assert "loopwright inspect" in printed and all(name in printed for name in PRESETS)


def test_generate_streams_and_counts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands.generate(str(folder), "the cat sat", depth=2, max_new_tokens=6)
    printed = capsys.readouterr()
    model, words = lw.LoopedForCausalLM.from_pretrained(folder), word_tokenizer()
    ids = words("the cat sat", return_tensors="pt")["input_ids"]
    expected = model.generate(ids, max_new_tokens=6, depth=2, do_sample=False, eos_token_id=1, pad_token_id=1)
    assert printed.out == words.decode(expected[0, 3:], skip_special_tokens=True) + "\n"
    assert printed.err.startswith(f"[{expected.shape[1] - 3} tokens, ") and "depth 2" in printed.err


def test_generate_with_a_chat_template_and_seeds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for seed in (1, 1, 2):
        sampling = Sampling(temperature=1.0)
        commands.generate(str(folder), "the cat", max_new_tokens=8, sampling=sampling, seed=0, state_seed=seed, chat=True)
        printed = capsys.readouterr()
        assert "after a prompt of 4" in printed.err  # two words, and the template's two
        texts.append(printed.out)
    assert texts[0] == texts[1] != texts[2]


def test_show_depth_prints_each_step(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands.generate(str(folder), "the cat", depth=3, max_new_tokens=0, show_depth=True)
    printed = capsys.readouterr().out
    model, words = lw.LoopedForCausalLM.from_pretrained(folder).eval(), word_tokenizer()
    for guess in next_token_by_depth(model, words("the cat", return_tensors="pt")["input_ids"], 3):
        line = next(line for line in printed.splitlines() if line.startswith(f"│    {guess.step} │"))
        assert f"{words.decode([guess.tokens[0]])!r} {guess.probabilities[0]:.3f}" in line
        assert f"{guess.entropy:.3f}" in line and f"{guess.divergence:.3f}" in line


def test_generate_on_a_dense_model(capsys: pytest.CaptureFixture[str]) -> None:
    if not STORIES.is_dir():
        pytest.skip("stories260K is not there")
    commands.generate(str(STORIES), "Once upon a time", max_new_tokens=12)
    assert "there was a little" in capsys.readouterr().out
    with pytest.raises(ValueError, match="dense model"):
        commands.generate(str(STORIES), "Once upon a time", depth=2)


def test_small_models_run_on_one_thread() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with commands._fitting_threads(lw.build("huginn-tiny")):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
