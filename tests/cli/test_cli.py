"""The command line: help that teaches, mistakes in one line, exit codes."""

from __future__ import annotations

import inspect
import sys

import pytest

from loopwright import cli
from loopwright.model import cost
from loopwright.recipes import FOLDER as RECIPES
from tests.cli.exit_codes import run


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_explains_every_option_and_gives_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(verb, "--help") == 0
    printed = capsys.readouterr().out
    assert f"loopwright {verb}" in printed and "Example" in printed
    for name, parameter in inspect.signature(cli.VERBS[verb], eval_str=True).parameters.items():
        assert parameter.annotation.__metadata__[0].help, f"{verb} {name} is not explained"


def test_the_list_of_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    printed = capsys.readouterr().out
    for verb, function in cli.VERBS.items():
        assert f" {verb} " in printed and function.__doc__.split()[0] in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["inspect", "hugin"], "did you mean 'huginn'"),
        (["check", "asure-tiny"], "did you mean 'asura-tiny'"),
        (["inspect", "huginn", "--depth", "0"], "depth: 0; allowed: a whole number of at least 1"),
        (["inspect", "huginn", "--depth", "two"], "'two'"),
        (["inspect", "asura", "--depth", "9"], "beyond max_steps=3"),
        (["inspect", "huginn", "--dtype", "nonsense"], "dtype: unknown 'nonsense'"),
        (["check", "huginn", "--dtype", "bf61"], "did you mean 'bf16'"),
        (["check", "huginn", "--device", "tpu"], "device: unknown 'tpu'"),
        (["check", "huginn", "--device", "cuda:99"], "is not there; allowed here: cpu"),
        (["inspect", "huginn", "--context", "0"], "context must be a whole number >= 1 (got 0)"),
        (["inspect", "huginn", "--batch", "-1"], "batch must be a whole number >= 1 (got -1)"),
        (["inspect", "stars-addition", "--context", "513"], "learned positions end"),
        (["inspect", "huginn", "--policy", "some"], "unknown policy 'some'"),
        (["inspect", "ouro-pretrain"], "model: 'ouro-pretrain' is a recipe; give a model's folder, a hub id or a preset's name"),
        (["inspect", str(RECIPES / "ouro-pretrain.yaml")], "ouro-pretrain.yaml' is a recipe; give a model's folder"),
        (["inspect", "./no/such/folder"], "no such folder"),
        (["check", "./no/such/folder"], "no such folder"),
        (["generate", "./no/such/folder", "hello"], "no such folder"),
        (["generate", "huginn", "hello"], "generate: 'huginn' is a preset, which has no trained weights; allowed: the folder"),
        (["generate", "nothere", "hello"], "generate: 'nothere' is no folder; allowed: the folder of a model or a run, or a hub"),
        (["analyze", "nothere", "--prompts", "a"], "analyze: 'nothere' is no folder; allowed: the folder of a model or a run"),
        (["analyze", "x/y", "--prompts", "a", "--compare", "nothere"], "compare: 'nothere' is no folder; allowed: the folder of"),
        (["retrofit", "nothere", "out"], "retrofit: 'nothere' is no folder; allowed: the folder of a model or a run"),
        (["evaluate", "nothere"], "evaluate: 'nothere' is no folder; allowed: the folder of a model or a run, or a hub id"),
        (["evaluate", "runs/nosuch"], "evaluate: runs/nosuch: there is no such folder; allowed: the folder of a run"),
        (["evaluate", "docs"], "evaluate: docs holds no run (no recipe.yaml) with data of its own; give data= (--data RECIPE"),
        (["inspect", "~nosuchuser/x"], "~nosuchuser/x: there is no such folder (~ names a user"),
        (["train", "~nosuchuser/x"], "~nosuchuser/x: there is no such folder (~ names a user"),
        (["inspect", "huginn-tiny", "dtype=rotary"], "dtype is 'rotary'; allowed: float32"),
        (["inspect", "huginn-tiny", "--depth", "100000000"], "depth: 100000000; allowed: a whole number of at least 1, at most"),
        (["inspect", "huginn-tiny", "core_layers=1000000000000"], "core_layers is 1000000000000; allowed: a whole number"),
        (["inspect", "huginn-tiny", "x=" + "[" * 5000], "nested too deep"),
        (["inspect", "huginn-tiny", "x=&a [*a]"], "nested more than 100 deep, or a part of itself"),
        (["inspect", "huginn-tiny", "depth=" + "9" * 5000], "override: 'depth': not valid YAML (Exceeds the limit"),
        (["inspect", "huginn-tiny", ".".join("a" * 5000) + "=1"], "levels; allowed: at most 20"),
        (["check", "huginn-tiny", "--seed", "99999999999999999999"], "a seed must be >= 0 and < 2**63 (got 99999999999999999999)"),
        (["inspect", "huginn-tiny", "--batch", "99999999999999999999"], "99999999999999999999 has more than 32 bits"),
        (["evaluate", "docs", "--data", "demo-stable", "--depths", "1:99999999"], "allowed: depths of at most 1,000,000"),
        (["evaluate", "nothere", "--data", "demo-stable"], "evaluate: 'nothere' is no folder; allowed: the folder of a model"),
        (["evaluate", "huginn", "--data", "demo-stable"], "evaluate: 'huginn' is a preset, which has no trained weights"),
        (["inspect", "huginn", "depht=3"], "did you mean 'depth'"),
        (["inspect", "huginn", "depth"], "not of the form name=value"),
        (["inspect", "huginn", "depth=many"], "depth is 'many'"),
        (["inspect", "huginn", "injection.kind=cat"], "did you mean 'concat'"),
        (["inspect", "huginn", "state.std=[1"], "not valid YAML"),
        (["inspect"], "Missing argument 'MODEL'"),
        (["inspekt", "huginn"], "Did you mean 'inspect'"),
        (["inspect", "huginn", "--dept", "3"], "--depth"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("loopwright: ") and printed.err.count("\n") == 1
    assert message in printed.err
    assert not printed.out


def test_no_arguments_show_the_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["loopwright"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    printed = capsys.readouterr()
    assert not stop.value.code and printed.err == "" and "loopwright demo" in printed.out


def test_an_error_of_ours_is_one_line_and_another_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cost, "parameters", lambda config: {}["kind"])
    assert run("presets") == 70
    printed = capsys.readouterr().err
    assert printed.startswith("loopwright: unexpected error: KeyError: 'kind'; the traceback is in ")
    assert printed.count("\n") == 1


def test_an_interrupt_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(config: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cost, "parameters", interrupted)
    assert run("presets") == 130
    assert capsys.readouterr().err == ""


def test_a_long_message_is_still_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def wrong(config: object) -> None:
        raise ValueError("first: wrong\n  second: wrong too")

    monkeypatch.setattr(cost, "parameters", wrong)
    assert run("presets") == 2
    assert capsys.readouterr().err == "loopwright: first: wrong second: wrong too\n"


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("loopwright ")
