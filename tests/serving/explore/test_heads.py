"""Maps of a head = the attentions that the model returns itself; the sink is the column that receives most."""

from __future__ import annotations

import pytest
import torch

import loopwright as lw
from loopwright.serving.explore.passes import head_maps
from tests.generation.mix import make

IDS = [2, 4, 8, 3, 11]


@pytest.fixture(scope="module")
def model() -> lw.LoopedForCausalLM:
    return make("huginn-tiny").float()


@torch.no_grad()
@pytest.mark.parametrize(("stack", "layer", "first", "every"), [("prelude", 1, 1, 0), ("core", 1, 3, 2), ("coda", 0, 8, 0)])
def test_maps_are_the_models_own(model: lw.LoopedForCausalLM, stack: str, layer: int, first: int, every: int) -> None:
    whole = model(torch.tensor([IDS]), depth=3, output_attentions=True).attentions
    found = head_maps(model, IDS, 3, stack=stack, layer=layer, head=2)
    assert len(found["maps"]) == len(found["sinks"]) == (3 if stack == "core" else 1)
    for step, rows in enumerate(found["maps"]):
        right = whole[first + every * step][0]
        for i, row in enumerate(rows):
            torch.testing.assert_close(torch.tensor(row), right[2, i, : i + 1], rtol=0, atol=5.1e-4)
        received = right.sum(1) / len(IDS)
        for head, sink in enumerate(found["sinks"][step]):
            assert sink["token"] == int(received[head].argmax())
            assert sink["share"] == pytest.approx(float(received[head].max()), abs=1e-4)


def test_an_edit_changes_the_maps_behind_it(model: lw.LoopedForCausalLM) -> None:
    edit = lw.zero("attention", lw.at(stack="core", step=1, layer=0))
    plain, edited = (head_maps(model, IDS, 3, stack="core", layer=1, head=0, edit=tap)["maps"] for tap in (None, edit))
    assert plain[0] == edited[0] and plain[1] != edited[1]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"stack": "x" * 99, "layer": 0, "head": 0}, "stack: 'xxx"),
        ({"stack": "core", "layer": 2, "head": 0}, "layer must be below 2, the layers of the core"),
        ({"stack": "core", "layer": 0, "head": 4}, "head must be below 4"),
    ],
)
def test_places_that_are_not_there(model: lw.LoopedForCausalLM, place: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        head_maps(model, IDS, 2, **place)  # type: ignore[arg-type]
