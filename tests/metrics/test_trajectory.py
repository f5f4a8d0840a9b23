"""Paths in few dimensions: what is flat stays as it is, and the picture does not depend on the solver."""

from __future__ import annotations

import pytest
import torch

from loopwright.metrics.states import cycle_path, last_tokens, layer_paths, pca_path, pca_paths, prompt_path, step_windows


def spiral(steps: int = 20) -> torch.Tensor:
    t = torch.arange(steps).double()
    return torch.stack([3 * torch.exp(-t / 6) * torch.cos(t), torch.exp(-t / 6) * torch.sin(t)], dim=1)


def test_a_flat_path_keeps_its_distances_and_is_explained_whole() -> None:
    torch.manual_seed(0)
    plane = torch.linalg.qr(torch.randn(60, 2).double()).Q
    states = (spiral() @ plane.T + torch.randn(60).double()).reshape(20, 3, 20)
    found = pca_path(states)
    assert found.coordinates.shape == (20, 2) and found.coordinates.dtype == torch.float64
    assert torch.allclose(torch.cdist(found.coordinates, found.coordinates), torch.cdist(spiral(), spiral()))
    assert found.explained.sum().item() == pytest.approx(1.0)
    variance = found.coordinates.square().sum(0)
    assert torch.allclose(variance / variance.sum(), found.explained) and variance[0] > variance[1]


def test_signs_and_units_do_not_depend_on_the_input() -> None:
    torch.manual_seed(0)
    states = torch.randn(9, 5, 4)
    found = pca_path(states, 3)
    assert torch.allclose(found.coordinates, pca_path(states + 7, 3).coordinates, atol=1e-5)
    assert torch.allclose(found.coordinates * 2, pca_path(states * 2, 3).coordinates)
    flat = states.flatten(1).double()
    direction = torch.linalg.lstsq(flat - flat.mean(0), found.coordinates).solution  # minimum norm: the directions themselves
    assert (direction.gather(0, direction.abs().argmax(0, keepdim=True)) > 0).all()


def test_several_paths_share_their_directions() -> None:
    torch.manual_seed(0)
    states = torch.randn(3, 6, 8)
    found = pca_paths(states)
    assert found.coordinates.shape == (3, 6, 2)
    joined = pca_path(states.reshape(18, 8))
    assert torch.equal(found.coordinates.reshape(18, 2), joined.coordinates) and torch.equal(found.explained, joined.explained)


def test_what_is_absent_is_zero() -> None:
    still = pca_path(torch.ones(5, 4))
    assert not still.coordinates.any() and not still.explained.any()
    line = pca_path(torch.arange(4.0)[:, None], 3)
    assert line.coordinates.shape == (4, 3) and not line.coordinates[:, 1:].any() and line.explained.tolist() == [1, 0, 0]


def test_malformed_states_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(1, 5\), k = 2"):
        pca_path(torch.ones(5))
    with pytest.raises(ValueError, match="k = 0; allowed"):
        pca_path(torch.ones(5, 2), 0)
    with pytest.raises(ValueError, match="not all finite"):
        pca_path(torch.tensor([[1.0, 2.0], [float("inf"), 0.0]]))


def test_the_last_token_is_the_last_real_one() -> None:
    x = torch.arange(12.0).view(3, 4, 1)
    valid = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0], [0, 1, 0, 0]])
    assert last_tokens(x, valid)[:, 0].tolist() == [3, 6, 9]
    assert last_tokens(x)[:, 0].tolist() == [3, 7, 11]
    with pytest.raises(ValueError, match="a row without a real token"):
        last_tokens(x, torch.zeros(3, 4))


def test_a_cycle_is_drawn_whole_and_its_windows_share_the_directions() -> None:
    states = torch.randn(10, 3, 7, generator=torch.Generator().manual_seed(0))
    found = cycle_path(states)
    flat = pca_path(states.view(30, 7))
    assert found.coordinates.shape == (10, 3, 2) and torch.equal(found.coordinates.view(30, 2), flat.coordinates)
    windows = step_windows(found.coordinates, 4)
    assert [(w.first, w.last) for w in windows] == [(0, 4), (4, 8), (8, 10)]
    assert torch.equal(torch.cat([w.coordinates for w in windows]), found.coordinates)
    with pytest.raises(ValueError, match=r"size must be a whole number >= 1 \(got 0\)"):
        step_windows(found.coordinates, 0)


def test_a_fixed_cycle_repeats_itself_in_the_picture() -> None:
    cycle = torch.randn(1, 3, 7, generator=torch.Generator().manual_seed(0))
    found = cycle_path(cycle.expand(5, 3, 7)).coordinates
    assert torch.allclose(found, found[:1].expand(5, 3, 2)) and found[0].std() > 0.1


def test_layers_have_directions_of_their_own() -> None:
    states = torch.randn(6, 3, 7, generator=torch.Generator().manual_seed(0))
    found = layer_paths(states)
    assert found.coordinates.shape == (3, 6, 2) and found.explained.shape == (3, 2)
    assert torch.equal(found.coordinates[1], pca_path(states[:, 1]).coordinates)


def test_padding_is_no_part_of_a_prompt() -> None:
    states = torch.randn(6, 4, 5, generator=torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(states, (0, 0, 2, 1), value=torch.nan)
    found = prompt_path(padded, torch.tensor([0, 0, 1, 1, 1, 1, 0]))
    assert torch.allclose(found.coordinates, prompt_path(states).coordinates)
    assert torch.equal(prompt_path(states).coordinates, pca_path(states).coordinates)
