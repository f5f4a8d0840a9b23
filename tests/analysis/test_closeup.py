"""Close looks at one prompt: matrices, maps, paths and spectra are those of whole tensors."""

import torch

from loopwright.analysis.closeup import compare_pairs, floorplan, neuron_shares, pair_bytes, spectrum, token_paths
from loopwright.metrics.spectrum import causal_radius
from tests.analysis.dense import dense_maps
from tests.cases import gap, noisy

IDS = torch.tensor([[3, 1, 4, 1, 5]])


def test_pairs_are_distances_of_whole_maps_and_cosines_of_whole_residuals():
    model = noisy("huginn-tiny")
    maps, recorder = dense_maps(model, IDS, 3)
    found = compare_pairs(model, IDS, steps=3)
    order = list(maps)
    a, b = maps[order[1]], maps[order[4]]
    assert abs(found["attention"][1][4] - (a - b).square().sum((-2, -1)).sqrt().mean().item()) < 1e-4
    x, y = (recorder.seen["residual", *order[i]] for i in (2, 5))
    assert abs(found["residual"][2][5] - torch.cosine_similarity(x, y, -1).mean().item()) < 1e-4
    assert len(found["attention"]) == len(order) == len(found["residual"])
    assert pair_bytes(model.config, 5, steps=3) == len(order) * (4 * 25 + 5 * 32) * 4


def test_the_floorplan_is_the_mean_over_heads():
    model = noisy("huginn-tiny")
    maps, _ = dense_maps(model, IDS, 2)
    found = floorplan(model, IDS, steps=2)
    whole = torch.stack([each[0].mean(0) for each in maps.values()])
    assert gap(torch.tensor(found["maps"]), whole) < 1e-4


def test_paths_have_a_point_per_step_and_layer():
    found = token_paths(noisy("huginn-tiny"), IDS, 6)
    assert torch.tensor(found["points"]).shape == (6, 2, 2) and torch.tensor(found["layers"]).shape == (2, 6, 2)


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
