"""Close looks at one prompt: matrices, maps, paths and spectra are those of whole tensors."""

import pytest
import torch

from loopwright.analysis.trace.edit import ablate_massive, at, zero
from loopwright.analysis.trace.places import Places
from loopwright.analysis.trace.single_prompt import (
    FLOOR_MAPS,
    HEAD_ROWS,
    compare_pairs,
    floor_steps,
    floorplan,
    floorplan_heads,
    neuron_shares,
    pair_bytes,
    path_bytes,
    spectrum,
    state_paths,
)
from loopwright.metrics.spectrum import causal_radius
from loopwright.metrics.states import prompt_path
from tests.analysis.dense import dense_maps
from tests.cases import gap, noisy

ROW = [3, 1, 4, 1, 5]
IDS = torch.tensor([ROW])


@pytest.mark.parametrize("name", ["huginn-tiny", "retrofit-llama-1b-tiny"])  # heads of their own, and heads that share keys
def test_pairs_are_distances_of_whole_maps_and_cosines_of_whole_residuals(name: str):
    model = noisy(name)
    maps, recorder = dense_maps(model, IDS, 3)
    found = compare_pairs(model, [ROW], steps=3)
    order = list(maps)
    a, b = maps[order[1]], maps[order[4]]
    assert abs(found["attention"][1][4] - (a - b).square().sum((-2, -1)).sqrt().mean().item()) < 1e-3
    x, y = (recorder.seen["residual", *order[i]] for i in (2, 5))
    assert abs(found["residual"][2][5] - torch.cosine_similarity(x, y, -1).mean().item()) < 1e-3
    assert len(found["attention"]) == len(order) == len(found["residual"])


def test_pairs_of_several_prompts_are_their_mean():
    model = noisy("huginn-tiny")
    each = [compare_pairs(model, [row], steps=2) for row in (ROW, [7, 8])]
    both = compare_pairs(model, [ROW, [7, 8]], steps=2)
    assert both["prompts"] == 2
    for name in ("attention", "residual"):
        assert gap(torch.tensor(both[name]), (torch.tensor(each[0][name]) + torch.tensor(each[1][name])) / 2) < 1e-3


def test_the_bytes_of_pairs_and_paths_are_those_of_the_tensors():
    config = noisy("huginn-tiny").config
    depths = config.prelude_layers + 3 * config.core_layers + config.coda_layers
    width, keyed = config.hidden_size, (config.num_attention_heads + config.num_key_value_heads) * config.head_dim
    assert pair_bytes(config, 5, steps=3) == depths * 4 * (5 * (width + keyed) + 2 * (25 + 5 * width))
    assert path_bytes(config, 5, 7) == 4 * 7 * 5 * width * 8
    assert path_bytes(noisy("huginn-tiny").without_adapters().config, 5, 7) == 0


@pytest.mark.slow
def test_close_looks_are_those_of_the_edited_pass():
    model = noisy("huginn-tiny", std=0.3)
    edit = ablate_massive(model.config)
    for line_style in (
        lambda edit: compare_pairs(model, [ROW], steps=2, edit=edit)["residual"],
        lambda edit: floorplan(model, IDS, steps=2, edit=edit)["maps"],
        lambda edit: floorplan_heads(model, IDS, 2, edit=edit)["maps"],
        lambda edit: state_paths(model, IDS, 4, edit=edit)["points"],
        lambda edit: state_paths(model, IDS, 4, edit=edit)["prompt"],
        lambda edit: spectrum(model, IDS, [2], edit=edit)["radius"],
    ):
        assert line_style(None) != line_style(edit)


@pytest.mark.slow
def test_an_edit_of_a_later_step_is_none_of_a_close_look_at_the_first():
    model = noisy("huginn-tiny", std=0.3)
    late = zero("mlp", at(step=5))
    assert floorplan(model, IDS, steps=2, edit=late) == floorplan(model, IDS, steps=2)
    assert state_paths(model, IDS, 6, edit=late) != state_paths(model, IDS, 6)
    assert spectrum(model, IDS, [2, 6], edit=late)["radius"] != spectrum(model, IDS, [2, 6])["radius"]
    for line_style in (lambda: state_paths(model, IDS, 4, edit=late), lambda: spectrum(model, IDS, [2, 4], edit=late)):
        with pytest.raises(ValueError, match="edit: mlp at step 5 would change nothing"):
            line_style()


def test_a_floorplan_shows_no_more_than_can_be_told_apart():
    assert floor_steps(noisy("huginn-tiny").config, 128) == 4 and floor_steps(noisy("huginn-tiny").config, 2) == 2
    assert floor_steps(noisy("huginn-tiny", core_layers=FLOOR_MAPS // 2).config, 128) == 1
    assert floor_steps(noisy("huginn-tiny", core_layers=FLOOR_MAPS).config, 128) == 0


def test_the_floorplan_is_the_mean_over_heads():
    model = noisy("huginn-tiny")
    maps, _ = dense_maps(model, IDS, 2)
    found = floorplan(model, IDS, steps=2)
    whole = torch.stack([each[0].mean(0) for each in maps.values()])
    assert gap(torch.tensor(found["maps"]), whole) < 6e-4  # three digits are kept


def test_single_heads_of_a_floorplan_are_the_maps_themselves_and_few_enough():
    model = noisy("huginn-tiny", core_layers=8)
    found = floorplan_heads(model, IDS, 4)
    places = Places(**found["places"])
    assert places.steps == 2 and places.count <= HEAD_ROWS < Places.of(model.config, 3).count
    maps, _ = dense_maps(model, IDS, 2)
    assert found["heads"] == list(range(model.config.num_attention_heads))
    for index, each in enumerate(found["maps"]):
        assert gap(torch.tensor(each), maps[places.name(index)][0]) < 6e-3  # two digits are kept
    assert floorplan_heads(noisy("huginn-tiny", core_layers=HEAD_ROWS), IDS, 4) == {}


@torch.no_grad()
def test_paths_have_a_point_per_step_and_layer_and_the_prompts_begins_at_its_start():
    model = noisy("huginn-tiny")
    found = state_paths(model, IDS, 6)
    assert torch.tensor(found["points"]).shape == (6, 2, 2) and torch.tensor(found["layers"]).shape == (2, 6, 2)
    e, p = model.embed(IDS)
    start = model.start_state(e, p)
    whole = prompt_path(torch.cat([start, *model.unroll(e, 6, p, state=start)]))
    assert gap(torch.tensor(found["prompt"], dtype=torch.float64), whole.coordinates) < 1e-4
    assert gap(torch.tensor(found["prompt_explained"], dtype=torch.float64), whole.explained) < 1e-4


@pytest.mark.long
@torch.no_grad()
def test_the_radius_is_that_of_a_step():
    model = noisy("huginn-tiny", std=0.3)
    found = spectrum(model, IDS, [1, 5])
    e, p = model.embed(IDS)
    states = list(model.unroll(e, 5, p))
    exact = causal_radius(lambda s: model.step(s, e, 4, p), states[-1])
    assert found["depths"] == [1, 5] and abs(found["radius"][1] - exact.item()) < 0.02 * exact.item()


def test_neurons_have_a_share_per_layer():
    found = neuron_shares(noisy("ouro-1.4b-tiny"))
    assert len(found["predict"]) == len(found["suppress"]) == 2 and all(0 <= v <= 1 for v in found["predict"])
