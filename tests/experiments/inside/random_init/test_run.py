"""The random-initialisation sweep: what its models share, what they are filled with, and claims that can fail."""

import copy
import json
import math
from pathlib import Path

import pytest
import torch

import loopwright as lw
from experiments.inside.random_init import plan
from experiments.inside.random_init.claims import CLAIMS, cells, judge
from experiments.inside.random_init.figures import FIGURES
from experiments.inside.random_init.plan import Row
from experiments.inside.random_init.run import FILE, conclude, measure, said
from loopwright.plot.drawing import panels
from tests.cases import some

pytestmark = pytest.mark.usefixtures("unlaid")
NORM_FIELDS = {"norm_placement", "end_norm", "final_norm"}


def result(norm: str, injection: str, verdict: str, *, seed: int = 0, layers: int = 12, start: str = "torch") -> dict:
    """A made-up model that settles into `verdict`."""
    own = {"none": 0.5}.get(verdict, 0.99)
    curves = {"fixed_cosine": own, "far_cosine": 0.99 if verdict == "degenerate" else 0.4, "fixed_norm": 1.0, "far_norm": 2.0}
    made = {name: [0.1] * 5 + [value] * 6 + [1.0] for name, value in curves.items()}
    row = Row(start, norm, injection, layers, seed)
    said_of = {"start": start, "norm": norm, "injection": injection, "layers": layers, "seed": seed}
    return {"name": row.name, **said_of, "steps": 12, "prompts": 4, "tokens": 32, "curves": made, "seconds": 0.5,
            "origin": {"loopwright": "0", "torch": "0"}}  # fmt: skip


PAPER = {
    ("pre", "injection"): "cyclic", ("huginn", "injection"): "cyclic", ("ouro", "injection"): "none",
    ("pre", "none"): "degenerate", ("huginn", "none"): "none", ("ouro", "none"): "none",
}  # fmt: skip


def results_of(settles: dict) -> list[dict]:
    return [result(*kind, verdict, seed=seed) for kind, verdict in settles.items() for seed in range(3)]


def plan_of(settles: dict) -> list[Row]:
    return [Row("torch", norm, injection, 12, seed) for norm, injection in settles for seed in range(3)]


def written(folder: Path, settles: dict) -> None:
    """Writes made-up results, the last first, as workers that end in no fixed order would."""
    folder.mkdir(exist_ok=True)
    (folder / FILE).write_text("".join(json.dumps(one) + "\n" for one in reversed(results_of(settles))))


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of a quarter of the width, where a test is about what they are and not about what they do."""
    monkeypatch.setitem(plan.SHARED, "hidden_size", 128)
    monkeypatch.setitem(plan.SHARED, "intermediate_size", 352)


@pytest.mark.usefixtures("narrow")
def test_models_differ_in_norms_injection_and_layers_alone():
    configs = {norm: plan.build(Row("torch", norm, "injection", 4, 0)).config.to_dict() for norm in plan.NORMS}
    for other in ("huginn", "ouro"):
        differ = {key for key in configs["pre"] if configs["pre"][key] != configs[other].get(key)}
        assert "norm_placement" in differ and differ <= NORM_FIELDS
    injected, plain = (plan.build(Row("torch", "ouro", injection, 4, 0)).config.to_dict() for injection in plan.INJECTIONS)
    assert {key for key in plain if plain[key] != injected[key]} == {"injection", "state"}
    assert (injected["prelude_layers"], injected["coda_layers"], injected["core_layers"]) == (0, 0, 4)


def test_the_sweep_is_whole():
    rows = list(plan.rows())
    assert len({row.name for row in rows}) == len(rows) == 54 + 2 * 6
    assert len([row for row in rows if row.start == plan.MAIN_START]) == 3 * 2 * 3 * 3


@pytest.mark.usefixtures("narrow")
def test_weights_start_as_they_say_and_by_the_seed_alone():
    width, row = plan.SHARED["hidden_size"], Row("torch", "pre", "injection", 4, 0)
    torch.manual_seed(5)
    a, b = plan.build(row), plan.build(row)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(
        a.core[0].mlp.up_proj.weight, plan.build(Row("torch", "pre", "injection", 4, 1)).core[0].mlp.up_proj.weight
    )
    reach = 1 / math.sqrt(width)
    assert 0.95 * reach < a.core[3].self_attn.q_proj.weight.abs().max() <= reach
    assert a.embed_tokens.weight.std().item() == pytest.approx(1, rel=0.02) and a.state.std == 1
    huginn = plan.build(Row("huginn", "pre", "injection", 4, 0))
    gate, up = (getattr(huginn.core[0].mlp, name).weight.std().item() for name in ("gate_proj", "up_proj"))
    assert gate / up == pytest.approx(math.sqrt(2 * 4 * 32), rel=0.05)
    assert plan.build(Row("normal", "pre", "none", 4, 0)).embed_tokens.weight.std().item() == pytest.approx(0.02, rel=0.02)


def test_two_models_in_miniature():
    pre = measure(Row("torch", "pre", "injection", 4, 0), steps=16)
    ouro = measure(Row("torch", "ouro", "none", 4, 0), steps=16)
    assert all(len(values) == 16 for one in (pre, ouro) for values in one["curves"].values())
    assert pre["curves"]["fixed_norm"][-1] == ouro["curves"]["fixed_norm"][-1] == 0  # the last step is the fixed point
    assert sum(pre["settles"].values()) == pytest.approx(1) and pre["settles"]["cyclic"] == 1 > ouro["settles"]["cyclic"]
    found = {cell.norm: cell.verdict for cell in cells([pre, ouro], "torch")}
    assert found == {"pre": "cyclic", "ouro": "none"}
    assert "command" not in pre["origin"] and pre["curves"] == measure(Row("torch", "pre", "injection", 4, 0), steps=16)["curves"]


def test_one_pass_gives_what_a_trace_of_fixed_points_gives():
    row = Row("torch", "huginn", "none", 4, 1)
    found = lw.trace(plan.build(row), plan.prompts(row), 9, collect=("residual", "fixed"))
    curves = measure(row, steps=9)["curves"]
    for name, values in curves.items():
        assert values == pytest.approx(found.core(name)[:, :, 0].mean(0).tolist(), rel=1e-5, abs=2e-5)
    assert curves["far_norm"][-1] > 1 > curves["far_cosine"][-1]


def test_the_papers_numbers_hold_and_each_claim_can_fail():
    assert all(claim.holds and not claim.against for claim in judge(cells(results_of(PAPER), "torch")))
    planted = {("huginn", "injection"): ("degenerate", 0), ("ouro", "injection"): ("cyclic", 1), ("ouro", "none"): ("cyclic", 2)}
    for kind, (verdict, which) in planted.items():
        claims = judge(cells(results_of({**PAPER, kind: verdict}), "torch"))
        assert [claim.holds for claim in claims] == [i != which for i in range(4)]
        assert [(cell.norm, cell.injection) for cell in claims[which].against] == [kind]
        assert said(claims[which]).startswith("does not hold: ") and verdict in said(claims[which])
    claims = judge(cells(results_of({**PAPER, ("pre", "none"): "none"}), "torch"))
    assert [claim.holds for claim in claims] == [True, True, False, False]


def test_models_that_were_not_run_support_nothing():
    assert [claim.holds for claim in judge([])] == [None] * 4
    assert said(judge([])[0]).startswith("not shown: ") and "not every model" in said(judge([])[0])
    some = {kind: verdict for kind, verdict in PAPER.items() if kind != ("huginn", "injection")}
    assert [claim.holds for claim in judge(cells(results_of(some), "torch"))] == [None, True, True, True]
    worse = {**some, ("pre", "injection"): "none"}
    assert judge(cells(results_of(worse), "torch"))[0].holds is False, "what was run speaks against it, whatever was not"


def test_seeds_that_differ_are_counted():
    kind = ("pre", "injection")
    mixed = [result(*kind, "cyclic", seed=0), result(*kind, "cyclic", seed=1), result(*kind, "none", seed=2)]
    (cell,) = cells(mixed, "torch")
    assert (cell.verdict, cell.seeds, cell.models) == ("none", 1, 3)  # the mean curve is below the threshold
    assert len(CLAIMS) == 4


def test_the_end_writes_everything_and_says_what_fails(tmp_path, capsys, monkeypatch):
    written(tmp_path / "a", PAPER)
    blank = panels([lambda axes: None])
    with monkeypatch.context() as undrawn:
        for name in FIGURES:
            undrawn.setitem(FIGURES, name, lambda results: blank)
        assert conclude(tmp_path / "a", plan_of(PAPER)) == 0
    assert "does not hold" not in capsys.readouterr().out
    wrong = {**PAPER, ("ouro", "injection"): "cyclic"}
    written(tmp_path / "b", wrong)
    assert conclude(tmp_path / "b", plan_of(wrong)) == 1
    said_there = capsys.readouterr().out
    assert "does not hold: With injection, Ouro's norms" in said_there
    assert "against: ouro, injection, 12 layers: cyclic" in said_there
    assert all((tmp_path / f"b/{name}.svg").is_file() for name in FIGURES)
    lines = [json.loads(line) for line in (tmp_path / "b" / FILE).read_text().splitlines()]
    assert [line["name"] for line in lines] == [row.name for row in plan_of(wrong)]


def test_a_missing_model_is_said(tmp_path, capsys):
    written(tmp_path, {kind: verdict for kind, verdict in PAPER.items() if kind != ("ouro", "none")})
    assert conclude(tmp_path, plan_of(PAPER)) == 2
    assert "missing: 3 of 18 models, torch/ouro/none/12/0 first" in capsys.readouterr().out
    assert not (tmp_path / "random-init.html").exists()


@pytest.mark.parametrize("name", some(FIGURES, {"starts", "figure-6"}))
def test_figures_depend_on_the_numbers(name):
    results = results_of(PAPER)
    changed = copy.deepcopy(results)
    for one in changed:
        one["curves"] = {key: [0.5 * value for value in values] for key, values in one["curves"].items()}
    assert FIGURES[name](results) != FIGURES[name](changed)
