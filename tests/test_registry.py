"""lw.register: kinds of the user's own, the files that they come from, and trainings with them."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import loopwright as lw
from loopwright.generation.sampling import checked_seed
from loopwright.parts import (
    AdamW,
    Adapter,
    DepthRule,
    Effects,
    Gate,
    HaltingHead,
    Injection,
    Metric,
    Norm,
    Objective,
    Part,
    Penalty,
    Reward,
    Site,
    State,
    cross_entropies,
    find_targets,
    take_width,
    target_features,
)
from loopwright.registry import PLACES, file_digests, import_file, missing_files, noted_files, register
from loopwright.schema import Kinds, build_kind
from loopwright.training.loop import train
from loopwright.training.recipe import make_recipe
from loopwright.training.trainable import choose
from tests.own_kinds import own_kinds, table_of

SMALL: dict[str, Any] = {
    "vocab_size": 16, "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "depth": 2, "max_position_embeddings": 64
}  # fmt: skip


@pytest.fixture(autouse=True)
def _own() -> Iterator[None]:
    with own_kinds():
        yield


class Gains(Injection):
    """x = s + g_t ⊙ e."""

    per_step = True

    def __init__(self, config: lw.LoopedConfig, gain: float = 1.0) -> None:
        super().__init__()
        self.gain, self.gains = gain, nn.Parameter(torch.empty(config.max_steps or 0, config.hidden_size))

    def start(self) -> None:
        nn.init.constant_(self.gains, self.gain)

    def forward(self, s: Tensor, e: Tensor, step: Any) -> Tensor:
        return s + take_width(self.gains, step) * e


# what is refused


@pytest.mark.parametrize("place", PLACES)
def test_every_place_has_a_table_that_knows_it(place: str) -> None:
    table = table_of(place)
    assert isinstance(table, Kinds) and table.place == place and table.shipped == set(table)
    for name, kind in table.items():  # what is asked of a user's kind our own offer too, but for what stands for an object
        assert issubclass(kind, table.inherits) or name == "given", name


def test_an_unknown_place_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"register: unknown place 'injektion'; did you mean 'injection'\? allowed: adapter, data"):
        register("injektion", "mine")
    with pytest.raises(ValueError, match=r"register: the name 'my part'; allowed: letters, digits"):
        register("gate", "my part")


def test_a_name_of_ours_is_never_taken() -> None:
    with pytest.raises(ValueError, match=r"register: injection 'concat' is one of loopwright's own; choose another name"):
        register("injection", "concat", replace=True)(Gains)


def test_the_same_class_may_come_again_and_another_one_only_where_it_is_told_to() -> None:
    assert register("injection", "mine")(Gains) is Gains and register("injection", "mine")(Gains) is Gains
    with pytest.raises(
        ValueError, match=r"'mine' is taken by .*Gains; .*lw.register\('injection', 'mine', replace=True\) to put Other"
    ):

        @register("injection", "mine")
        class Other(Gains): ...

    assert table_of("injection")["mine"] is Gains

    @register("injection", "mine", replace=True)
    class Another(Gains): ...

    assert table_of("injection")["mine"] is Another


def test_a_cell_that_is_run_again_replaces_what_it_made() -> None:
    def cell() -> type:
        @register("injection", "mine")
        class Mine(Gains): ...

        return Mine

    first, second = cell(), cell()
    assert first is not second and table_of("injection")["mine"] is second


BASES = {
    "state": State, "injection": Injection, "adapter": Adapter, "gate": Gate, "halting": HaltingHead, "norm": Norm,
    "depth": DepthRule, "objective": Objective, "penalty": Penalty, "metric": Metric, "data": object, "optim": object,
    "schedule": object, "reward": Reward,
}  # fmt: skip
MISSING = {
    "adapter": "begin", "halting": "mixes, value, forward", "depth": "depth_at", "data": "splits", "optim": "prepare, __call__",
    **dict.fromkeys(("state", "injection", "gate", "norm"), "forward"),
    **dict.fromkeys(("objective", "penalty", "metric", "schedule", "reward"), "__call__"),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_what_a_kind_does_not_offer_is_named(place: str) -> None:
    empty = type("Empty", (BASES[place],), {})
    with pytest.raises(TypeError, match=rf"register: {place} 'mine': Empty has no {MISSING[place]}; docs/extend.md"):
        register(place, "mine")(empty)
    assert "mine" not in table_of(place)


def test_a_class_of_another_make_is_refused() -> None:
    class Plain(nn.Module):
        def forward(self, s: Tensor, e: Tensor, step: Any) -> Tensor:
            return s

    with pytest.raises(TypeError, match=r"Plain must inherit from Injection \(from loopwright.parts import Injection\)"):
        register("injection", "mine")(Plain)
    with pytest.raises(TypeError, match="is no class; allowed: a class whose options are the arguments of its __init__"):
        register("injection", "mine")(lambda s, e, step: s)  # type: ignore[type-var]


def test_arguments_that_no_place_gives_are_refused() -> None:
    class Bare(Injection):
        def __init__(self) -> None:
            super().__init__()

        def forward(self, s: Tensor, e: Tensor, step: Any) -> Tensor:
            return s

    class Loose(Bare):
        def __init__(self, config: lw.LoopedConfig, **kwargs: Any) -> None:
            super().__init__()

    class Heavy(Penalty):
        def __init__(self, weight: float = 1.0) -> None: ...

        def __call__(self, model: Any, rollout: Any) -> Tensor:
            return rollout.last.mean()

    with pytest.raises(TypeError, match=r"the __init__ of Bare has no argument 'config'; allowed: __init__\(self, config, option"):
        register("injection", "mine")(Bare)
    with pytest.raises(TypeError, match=r"the __init__ of Loose has \*kwargs, whose names nobody could check"):
        register("injection", "mine")(Loose)
    with pytest.raises(TypeError, match="penalty 'mine': weight is an option that every penalty has already"):
        register("penalty", "mine")(Heavy)


# kinds that work


def test_a_per_step_injection_is_asked_for_its_rows_checked_and_loaded_again(tmp_path: Path) -> None:
    register("injection", "mine")(Gains)
    with pytest.raises(ValueError, match="max_steps is missing; needed by parts with one row of parameters per step: injection"):
        lw.LoopedConfig(**SMALL, injection={"kind": "mine"})
    with pytest.raises(ValueError, match=r"injection \(mine\): unknown 'gian'; did you mean 'gain'\? allowed: gain"):
        lw.LoopedConfig(**SMALL, max_steps=3, injection={"kind": "mine", "gian": 2.0})
    config = lw.LoopedConfig(**SMALL, max_steps=3, injection={"kind": "mine", "gain": 0.5})
    assert config.step_tables == ["injection"]
    model = lw.LoopedForCausalLM(config).eval()
    assert bool((model.injection.gains == 0.5).all())
    with pytest.raises(ValueError, match="depth: 4 is beyond max_steps=3; injection have no parameters for later steps"):
        config.check_depth(4)
    lw.save(model, tmp_path / "m")
    ids = torch.arange(6)[None]
    assert torch.equal(lw.load(tmp_path / "m")(ids).logits, model(ids).logits)
    del table_of("injection")["mine"]
    with pytest.raises(
        ValueError, match=r"injection: unknown kind 'mine'; allowed: .*; if it is a part of your own, import its file"
    ):
        lw.load(tmp_path / "m")


@pytest.mark.slow
def test_a_per_step_injection_passes_every_check() -> None:
    register("injection", "mine")(Gains)
    torch.manual_seed(0)
    report = lw.check(lw.LoopedForCausalLM(lw.LoopedConfig(**SMALL, max_steps=3, injection={"kind": "mine"})))
    assert report.ok, report.rows


def test_a_part_says_what_the_house_must_know() -> None:
    class Shifted(Gate):
        per_step = frozen = draws = True

        def __init__(self, config: lw.LoopedConfig) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(config.max_steps or 0, config.hidden_size), requires_grad=False)

        def forward(self, old: Tensor, new: Tensor, step: Any) -> Tensor:
            return new + take_width(self.shift, step)

    register("gate", "shifted")(Shifted)
    config = lw.LoopedConfig(**SMALL, max_steps=2, gate={"kind": "shifted"})
    assert config.step_tables == ["gate"] and config.draws
    model = lw.LoopedForCausalLM(config)
    with pytest.raises(ValueError, match=r"'gate.\*' matches no parameter that can be trained; gate.shift is frozen by its part"):
        choose(model, ["gate.*"])


def test_a_part_that_reads_the_future_is_not_generated_from() -> None:
    class Mean(Injection):
        leaks_future = True

        def __init__(self, config: lw.LoopedConfig) -> None:
            super().__init__()

        def forward(self, s: Tensor, e: Tensor, step: Any) -> Tensor:
            return s + e.mean(1, keepdim=True)

    register("injection", "mean")(Mean)
    model = lw.LoopedForCausalLM(lw.LoopedConfig(**SMALL, injection={"kind": "mean"})).eval()
    assert model.leaks_future
    with pytest.raises(ValueError, match="future"):
        model.generate(torch.arange(4)[None], max_new_tokens=2)


def test_a_state_a_norm_and_their_options() -> None:
    class Wave(State):
        seeded = True

        def __init__(self, config: lw.LoopedConfig) -> None:
            super().__init__()

        def forward(self, e: Tensor, positions: Tensor, seed: Any) -> Tensor:
            return torch.zeros_like(e) + float(seed or 0)

    class Scaled(Norm):
        def __init__(self, width: int, *, eps: float, steps: int | None = None, factor: float = 2.0) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, x: Tensor, step: Any = None) -> Tensor:
            return self.factor * x

    register("state", "wave")(Wave)
    register("norm", "scaled")(Scaled)
    norm = {"kind": "scaled", "eps": 1e-6, "factor": 3.0}
    model = lw.LoopedForCausalLM(lw.LoopedConfig(**SMALL, state={"kind": "wave"}, norm=norm)).eval()
    assert checked_seed(model, 7) == 7 and model.norm.factor == 3.0
    ids = torch.arange(4)[None]
    assert not torch.equal(model(ids, state_seed=1).logits, model(ids, state_seed=2).logits)
    with pytest.raises(ValueError, match=r"norm is .*'fcator': 1.0"):
        lw.LoopedConfig(**SMALL, norm={"kind": "scaled", "fcator": 1.0})


def test_an_adapter_that_says_what_it_adds_to_a_weight_can_be_merged() -> None:
    class Added(Adapter):
        unfoldable = None
        targets = ("q_proj",)

        def __init__(self, site: Site) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(site.layers, site.config.hidden_size, site.config.hidden_size))

        def begin(self, step: Any, s: Tensor, p: Any) -> Effects:
            def update(layer: int, name: str, x: Tensor, weight: Tensor | None) -> Tensor | None:
                return x @ self.table[layer].T if name == "q_proj" else None

            return Effects(update=update)

        def fold(self, name: str, leaf: str, layer: int, dtype: torch.dtype) -> Tensor | None:
            return self.table[layer].to(dtype) if leaf == "weight" else None

    register("adapter", "added")(Added)
    model = lw.LoopedForCausalLM(lw.LoopedConfig(**{**SMALL, "depth": 1}, adapters=[{"kind": "added"}])).eval()
    ids = torch.arange(6)[None]
    merged = lw.merge(model)
    assert not merged.config.adapters
    torch.testing.assert_close(merged(ids).logits, model(ids).logits)


class Half(HaltingHead):
    """Each step halts half of what is left."""

    mixes = "logits"

    def __init__(self, config: lw.LoopedConfig) -> None:
        super().__init__()
        self.proj = nn.Linear(config.hidden_size, 1)

    def value(self, s: Tensor) -> Tensor:
        return torch.sigmoid(self.proj(s))

    def forward(self, halt: Tensor) -> Tensor:
        return torch.softmax(halt, dim=-1)


def test_a_halting_answers_by_every_rule() -> None:
    register("halting", "half")(Half)
    model = lw.LoopedForCausalLM(lw.LoopedConfig(**SMALL, halting={"kind": "half"})).eval()
    ids = torch.arange(4)[None]
    out = model(ids, output_steps=True, select="expected")
    torch.testing.assert_close(out.exit_probs.sum(-1), torch.ones(1, 4))
    torch.testing.assert_close(
        out.logits, sum(p[..., None] * x for p, x in zip(out.exit_probs.unbind(-1), out.step_logits, strict=True))
    )
    assert torch.equal(model(ids, select="hub").logits, out.step_logits[-1])  # a threshold of 1 is reached at the end


def test_the_page_says_of_every_place_what_it_asks_for() -> None:
    page = (Path(__file__).parent.parent / "docs" / "extend.md").read_text()
    rows = {row.split("|")[1].strip(" `"): row for row in page.splitlines() if row.startswith("| `") and row.count("|") == 6}
    assert set(rows) == set(PLACES)
    for place, row in rows.items():
        table = table_of(place)
        assert place == "data" or table.inherits is object or f"`{table.inherits.__name__}`" in row
        assert all(f"`{given}`" in row for given in table.given) and all(f"`{offer}" in row for offer in table.offers), place


@pytest.mark.slow
def test_the_page_runs() -> None:
    page = (Path(__file__).parent.parent / "docs" / "extend.md").read_text()
    for place, block in enumerate(re.findall(r"```python\n(.*?)```", page, re.DOTALL)):
        exec(compile(block, f"extend.md, block {place}", "exec"), {"__name__": "extend"})


@pytest.mark.parametrize("future", ["from __future__ import annotations\n", ""])
def test_options_are_checked_by_their_types_however_the_file_is_written(future: str) -> None:
    code = f"""{future}
class Typed(Gains):
    def __init__(self, config, gain: float = 1.0, names: list[int] | None = None):
        super().__init__(config, gain)
"""
    space: dict[str, Any] = {"Gains": Gains, "__name__": "typed"}
    exec(compile(code, "typed", "exec", dont_inherit=True), space)
    register("injection", "typed")(space["Typed"])
    for wrong in ({"gain": "much"}, {"names": ["a"]}):
        with pytest.raises(ValueError, match=r"injection \(typed\): (gain|names\[0\]) is .*; allowed: a "):
            lw.LoopedConfig(**SMALL, max_steps=2, injection={"kind": "typed", **wrong})


@pytest.mark.long
def test_nobody_asks_for_a_kind_by_its_class() -> None:
    """What the rest must know of a kind the kind says itself, or a kind of the user's own could not say it."""
    kinds = {kind.__name__ for place in PLACES for kind in table_of(place).values()}
    root, found = Path(__file__).parent.parent, []
    for path in sorted((root / "loopwright").rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        tree = ast.parse(path.read_text())
        own = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                names = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
                found += [f"{module}: {name}" for name in names - own if name in kinds]
    assert found == []


def test_parts_are_modules() -> None:
    assert all(issubclass(base, Part) for base in (State, Injection, Adapter, Gate, HaltingHead, Norm))


COUNTS = "import builtins\nbuiltins.times_imported = getattr(builtins, 'times_imported', 0) + 1\n"


@pytest.fixture(autouse=True)
def _own_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    modules, path = dict(sys.modules), list(sys.path)
    monkeypatch.chdir(tmp_path)
    with own_kinds():
        yield
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]
    sys.path[:] = path


def times() -> int:
    import builtins

    return getattr(builtins, "times_imported", 0)


def test_a_file_is_executed_once_under_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "its_own_parts.py").write_text(COUNTS + "WORD = 'here'\n")
    before = times()
    found = [import_file(name) for name in ("its_own_parts.py", "./its_own_parts.py")]
    assert found == [tmp_path / "its_own_parts.py"] * 2 and times() == before + 1
    import its_own_parts  # type: ignore[import-not-found]

    assert its_own_parts.WORD == "here" and times() == before + 1
    assert noted_files() == ["its_own_parts.py"] and len(file_digests()["its_own_parts.py"]) == 12


def test_a_module_that_is_there_already_is_not_executed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts_there.py").write_text(COUNTS)
    monkeypatch.syspath_prepend(tmp_path)
    before = times()
    import parts_there  # type: ignore[import-not-found]  # noqa: F401

    import_file("parts_there.py")
    assert times() == before + 1 and noted_files() == ["parts_there.py"]


def test_a_file_hides_no_package(tmp_path: Path) -> None:
    (tmp_path / "safetensors.py").write_text("WORD = 'mine'\n")
    (tmp_path / "wave.py").write_text("WORD = 'mine'\n")  # of the standard library, and not imported yet
    for name in ("safetensors.py", "wave.py"):
        import_file(name)
    import wave

    import safetensors

    assert safetensors.__name__ == "safetensors" and hasattr(safetensors, "safe_open") and hasattr(wave, "Wave_read")


def test_a_neighbour_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "its_neighbour.py").write_text("WORD = 'next door'\n")
    (tmp_path / "with_neighbour.py").write_text("import its_neighbour\nassert its_neighbour.WORD == 'next door'\n")
    assert import_file("with_neighbour.py") == tmp_path / "with_neighbour.py"


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = 1\n\n\ndef f():\n    return undefined\n\n\nf()\n")
    (tmp_path / "no_python.py").write_text("x = 1\ny = (\n")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match=r"^import: .*broken.py, line 5: NameError: name 'undefined' is not defined$"):
        import_file("broken.py")
    with pytest.raises(ValueError, match=r"^import: .*no_python.py, line 2: SyntaxError: "):
        import_file("no_python.py")
    with pytest.raises(
        ValueError, match=r"^import: gone.py: there is no such file \(looked for /.*gone.py\); allowed: the path of a"
    ):
        import_file("gone.py")
    with pytest.raises(ValueError, match=r"^import: notes.txt: is no Python file"):
        import_file("notes.txt")
    assert noted_files() == [] and "broken" not in sys.modules


def test_a_file_that_failed_half_way_is_executed_again(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(
        "from loopwright.registry import note_file\nfrom pathlib import Path\nnote_file(Path(__file__))\n1 / 0\n"
    )
    for _ in range(2):
        with pytest.raises(ValueError, match="line 4: ZeroDivisionError"):
            import_file("half.py")
    assert noted_files() == []


def test_a_strangers_file_name_is_quoted() -> None:
    assert "--import 'a.py; rm -r x'" in missing_files(["a.py; rm -r x"])


def test_what_is_missing_is_named_and_what_is_there_is_not(tmp_path: Path) -> None:
    (tmp_path / "parts_here.py").write_text("")
    import_file("parts_here.py")
    assert missing_files(["parts_here.py"]) == missing_files(None) == missing_files("x.py") == missing_files([1]) == ""
    assert missing_files(["parts_here.py", "other.py"]) == (
        "; it was trained with custom parts: look at what they do, then give --import other.py"
    )
    assert len(missing_files([f"{i}" + "a" * 10_000 for i in range(1000)])) < 2000  # what a stranger's file says is cut


def test_a_folder_outside_the_working_directory_is_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts_afar.py").write_text("")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    import_file("../parts_afar.py")
    assert noted_files() == [str(tmp_path / "parts_afar.py")]


class LastTwo(Objective):
    def __call__(self, model: Any, rollout: Any) -> tuple[Tensor, dict[str, Tensor]]:
        targets = find_targets(rollout.batch)
        losses, _ = cross_entropies(model, target_features(model, rollout.states[-2:], rollout.p, targets), rollout.p, targets)
        return targets.mean(losses.mean(0)), {"loss_last": targets.mean(losses[-1]).detach()}


class Halves(DepthRule):
    most = 2

    def depth_at(self, u: float, v: float) -> int:
        return 1 + (u > 0.5)


class Sgd(AdamW):
    slots = {torch.optim.SGD: {"momentum_buffer": True}}  # noqa: RUF012

    def over(self, model: nn.Module, trained: Any) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(self.groups(model, trained), lr=self.lr, momentum=0.9)]


class Falling:
    def __call__(self, update: int, updates: int) -> float:
        return 1 - update / updates


class Sure(Metric):
    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.scale * logits.softmax(-1).amax(-1).mean(1)


def _recipe(**changes: Any) -> Any:
    for place, kind in {"objective": LastTwo, "depth": Halves, "optim": Sgd, "schedule": Falling, "metric": Sure}.items():
        register(place, "mine")(kind)
    data = {
        "about": "of the user's own", "model": {"kind": "preset", "changes": SMALL},
        "data": {"kind": "addition", "digits": 2, "longer": [], "train": 40, "valid": 8, "test": 8},
        "updates": 4, "batch": 4, "depth": {"kind": "mine"}, "objective": {"kind": "mine"}, "optim": {"kind": "mine", "lr": 0.1},
        "schedule": {"kind": "mine"}, "validate": {"every": 2, "metrics": [{"kind": "mine", "scale": 2.0}]}, "save": {"every": 2},
        **changes,
    }  # fmt: skip
    return make_recipe(data)


def test_a_run_of_the_users_own_kinds_resumes_bit_for_bit(tmp_path: Path) -> None:
    recipe = _recipe()
    whole = train(recipe, tmp_path / "whole")
    cut = train(recipe, tmp_path / "cut")
    rows = (tmp_path / "cut" / "log.jsonl").read_text()
    assert '"mine"' in rows and whole.progress.update == cut.progress.update == 4
    last = tmp_path / "cut" / "checkpoints" / "00000004"
    for file in last.iterdir():
        file.unlink()
    last.rmdir()
    again = train(recipe, tmp_path / "cut", resume=True)
    for (name, a), b in zip(whole.model.named_parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_an_optimiser_whose_state_nobody_knows_is_refused(tmp_path: Path) -> None:
    recipe = _recipe()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sgd, "slots", {})
        with pytest.raises(ValueError, match="optim: nothing says what SGD keeps of a parameter"):
            train(recipe, tmp_path / "run")


def test_a_rule_that_cannot_be_resized_is_not_grown() -> None:
    register("depth", "mine")(Halves)
    with pytest.raises(ValueError, match=r"depth \(curriculum\): rule 'mine' cannot be resized"):
        build_kind({"kind": "curriculum", "rule": {"kind": "mine"}, "updates": 3}, table_of("depth"))


def test_a_metric_stands_once() -> None:
    with pytest.raises(ValueError, match="validate: metrics: mine stands there twice"):
        _recipe(validate={"every": 2, "metrics": [{"kind": "mine"}, {"kind": "mine"}]})
