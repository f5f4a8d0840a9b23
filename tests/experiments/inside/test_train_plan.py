"""The models of the training study: likenesses have the parts of Ouro and Huginn, weights of other seeds a folder of their own."""

from __future__ import annotations

import pytest

from experiments.inside.train_plan import INJECTED, SLOW, Row, likenesses, written
from loopwright.model.config import LoopedConfig
from loopwright.model.cost import parameters
from loopwright.model.presets import preset


@pytest.mark.parametrize(
    ("row", "released"),
    [(row, {"ouro": "ouro-1.4b"}.get(row.family, row.family)) for row in likenesses() if not row.dense],
    ids=lambda each: str(each),
)
def test_a_likeness_has_the_parts_of_the_released_model(row: Row, released: str) -> None:
    own, theirs = LoopedConfig(**row.recipe("corpus", "bpe", 256)["model"]["changes"]), preset(released)
    for part in ("norm_placement", "end_norm", "injection", "prelude_layers", "coda_layers"):
        assert getattr(own, part) == getattr(theirs, part), part
    for part in ("final_norm", "state"):
        assert getattr(own, part)["kind"] == getattr(theirs, part)["kind"], part
    assert own.injection == (INJECTED["injection"] if row.injected else {"kind": "none"})


def test_a_slow_model_has_another_rate_and_a_name_of_its_own() -> None:
    as_others, _, slow, *_ = likenesses()
    recipes = [row.recipe("corpus", "bpe", 256) for row in (as_others, slow)]
    assert recipes[0]["optim"]["lr"] == 1e-3 and recipes[1] == {**recipes[0], "optim": {**recipes[0]["optim"], "lr": SLOW}}
    assert (slow.name, written(slow.label)) == ("ouro-8-slow/0", "(0, 8⊗4, 0), Ouro's norms, rate 0.0003")
    assert written("huginn-4-injected") == "(2, 4⊗4, 2) I, Huginn's norms" and written("bare-8") == "(0, 8⊗4, 0)"


@pytest.mark.parametrize(("layers", "of_the_loop"), [(8, 0.98), (12, 1.35), (20, 2.08)])
def test_without_a_loop_norms_are_the_same_and_parameters_or_layers_are_those_of_the_loop(layers: int, of_the_loop: float) -> None:
    dense, looped = Row("huginn", dense=layers), Row("huginn", 4, injected=True)
    made, beside = (LoopedConfig(**row.recipe("corpus", "bpe", 256)["model"]["changes"]) for row in (dense, looped))
    assert made.norm_placement == beside.norm_placement and not made.is_looped
    sizes = [parameters(config)["total"].unique for config in (made, beside)]
    assert sizes[0] / sizes[1] == pytest.approx(of_the_loop, abs=0.02)
    assert (dense.name, written(dense.label)) == (f"huginn-dense-{layers}/0", f"{layers} layers, Huginn's norms")
    assert len({row.name for row in likenesses()}) == len([*likenesses()])


def test_seeds_have_folders_of_their_own() -> None:
    assert [Row("sandwich", 8, True, seed).folder for seed in (0, 2)] == ["sandwich-8-injected", "sandwich-8-injected-2"]
