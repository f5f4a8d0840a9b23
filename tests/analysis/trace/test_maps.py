"""Rows made again from queries and keys are the model's own maps, in chunks of any size: grouped heads, padding, windows."""

from types import SimpleNamespace

import pytest
import torch

from loopwright.analysis.trace.collect import View, attention_rows, sum_maps
from loopwright.kernels import gate
from loopwright.kernels.gate import can_compile
from loopwright.metrics.attention import col_sum_concentration, concentration_of, mixing_score
from loopwright.model.span import place_tokens
from tests.analysis.dense import dense_maps
from tests.cases import gap, noisy

IDS = torch.randint(0, 96, (3, 9), generator=torch.Generator().manual_seed(1))
MASK = torch.ones_like(IDS)
MASK[1, 6:] = 0
MASK[2, :2] = 0
KINDS = {
    "plain": ("ouro-1.4b-tiny", {}, None),
    "padded": ("huginn-tiny", {}, MASK),
    "grouped": ("ouro-1.4b-tiny", {"num_attention_heads": 4, "num_key_value_heads": 2}, MASK),
    "window": ("ouro-1.4b-tiny", {"sliding_window": 3}, None),
    "padded window": ("ouro-1.4b-tiny", {"sliding_window": 3}, MASK),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 3 * 4 * 9 * 4, 2**20])
def test_rows_are_the_models_own_maps(kind: str, chunk: int):
    name, changes, mask = KINDS[kind]
    model = noisy(name, **changes)
    maps, recorder = dense_maps(model, IDS, 2, mask)
    view = View.of(place_tokens(*IDS.shape, IDS.device, attention_mask=mask), model.config.sliding_window)
    for place, whole in maps.items():
        q, k = recorder.seen["query", *place], recorder.seen["key", *place]
        parts = list(attention_rows(q, k, view, chunk=chunk))
        assert [i for rows in parts for i in range(rows.part.start, rows.part.stop)] == list(range(9))
        assert gap(torch.cat([rows.attention for rows in parts], dim=2), whole) < 1e-5
        assert gap(torch.cat([rows.entropy for rows in parts], dim=2), torch.special.entr(whole).sum(-1)) < 1e-5
        sums, _ = sum_maps(q, k, view, chunk=chunk)
        assert gap(sums.entropy / view.count[:, None], mixing_score(whole, view.valid)) < 1e-5


def test_distances_are_the_frobenius_norms_over_valid_rows():
    model = noisy("huginn-tiny")
    maps, recorder = dense_maps(model, IDS, 3, MASK)
    view = View.of(place_tokens(*IDS.shape, IDS.device, attention_mask=MASK), None)
    pairs = [(recorder.seen["query", "core", t, 1], recorder.seen["key", "core", t, 1]) for t in range(3)]
    for chunk in (1, 2**20):
        for t in (1, 2):
            _, change = sum_maps(*pairs[0], view, pairs[t], chunk=chunk)
            apart = (maps["core", t, 1] - maps["core", 0, 1]) * MASK[:, None, :, None]
            assert change is not None and gap(change.distance, apart.square().sum((-2, -1)).sqrt()) < 1e-5
            assert change.distance.min() > 1e-3 and (change.distance <= change.bound).all()


def test_maps_held_at_once_do_not_grow_with_the_tokens():
    view = View.of(place_tokens(2, 64, torch.device("cpu")), None)
    q, k = torch.randn(2, 64, 4, 8), torch.randn(2, 64, 2, 8)
    chunk = 2 * 4 * 64 * 5
    assert max(rows.attention.numel() for rows in attention_rows(q, k, view, chunk=chunk)) <= chunk
    whole = torch.cat([rows.attention for rows in attention_rows(q, k, view, chunk=chunk)], dim=2)
    sums, _ = sum_maps(q, k, view, chunk=chunk)
    assert gap(concentration_of(sums.columns), col_sum_concentration(whole)) < 1e-5


def test_entropy_of_scores_in_the_hundreds():
    view = View.of(place_tokens(1, 32, torch.device("cpu")), None)
    q, k = (100 * torch.randn(1, 32, 2, 8, generator=torch.Generator().manual_seed(i)) for i in (0, 1))
    sums, _ = sum_maps(q, k, view)
    exact, _ = sum_maps(q.double(), k.double(), view)
    assert gap(sums.entropy.double() / 32, exact.entropy / 32) < 1e-4 and exact.entropy.min() >= 0


@pytest.mark.parametrize(("triton", "compiler"), [(True, True), (False, True), (True, False)])
def test_who_has_the_kernel(monkeypatch, triton: bool, compiler: bool):
    """Not on a CPU or in float64, not on a card too old for it, not without Triton or a C compiler."""
    can_compile.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: {0: (7, 5), 1: (8, 0)}[device])
    monkeypatch.setattr(gate, "find_spec", lambda name: "spec" if triton and name == "triton" else None)
    monkeypatch.setattr(gate, "which", lambda name: name if compiler and name == "gcc" else None)
    monkeypatch.setattr(gate, "is_plain", lambda x: True)  # these stand for tensors
    assert gate.has_kernels(SimpleNamespace(is_cuda=True, dtype=torch.bfloat16, device=1)) == (triton and compiler)
    assert not gate.has_kernels(SimpleNamespace(is_cuda=True, dtype=torch.float64, device=1))
    assert not gate.has_kernels(SimpleNamespace(is_cuda=True, dtype=torch.float16, device=0))
    assert not gate.has_kernels(torch.zeros(1))
    can_compile.cache_clear()
