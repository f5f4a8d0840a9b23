"""What a trace gathers: places, lenses, attention maps."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import loopwright as lw
from loopwright.analysis.trace.collect import ResidualStatistics, Sheet, View, Watcher, attention_rows, sum_maps, token_index
from loopwright.analysis.trace.places import Places
from loopwright.analysis.trace.trace import trace
from loopwright.kernels import gate
from loopwright.kernels.gate import can_compile
from loopwright.metrics.attention import col_sum_concentration, concentration_of, mixing_score
from loopwright.metrics.predictions import prediction_divergence
from loopwright.model.span import place_tokens
from loopwright.model.taps import Recorder
from tests.analysis.dense import dense_maps
from tests.cases import gap, noisy

MASK = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 0]])


def sheet(steps: int = 2) -> Sheet:
    return Sheet(Places(0, 2, 0, steps), View.of(place_tokens(2, 4, torch.device("cpu"), attention_mask=MASK), None))


def test_tokens_are_counted_among_the_valid_ones():
    assert token_index(sheet().view, [0, -1]).tolist() == [[0, 3], [1, 2]]


def test_what_nobody_put_is_nan():
    made = sheet()
    made.put("x", ("core", 1, 0), torch.tensor([1.0, 2.0]))
    made.put("n", ("core", 0, 1), torch.tensor([1, 2]))
    assert made.values["x"].isnan().tolist() == [[True, True, False, True]] * 2
    assert made.values["n"].tolist() == [[-1, 1, -1, -1], [-1, 2, -1, -1]]


def test_padding_does_not_enter_the_residual_numbers():
    found = []
    for filler in (0.0, 1e6):
        made = sheet()
        x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0)).masked_fill(~MASK.bool()[..., None], filler)
        ResidualStatistics(made).see("residual", x, ("core", 0, 0))
        found.append(made.values)
    assert torch.equal(found[0]["norm"][:, 0], found[1]["norm"][:, 0])
    assert torch.equal(found[0]["largest"][:, 0], found[1]["largest"][:, 0])


def test_rows_at_their_own_steps_are_refused():
    with pytest.raises(ValueError, match="rows at different steps"):
        Watcher([])("state", torch.zeros(1), stack="core", step=torch.tensor([0]), layer=0)


def test_the_gate_and_the_diagonals_are_means_over_real_tokens():
    model = noisy("ouroboros-qwen2.5-3b-tiny", std=0.3)
    ids, mask = torch.randint(0, 96, (2, 7), generator=torch.Generator().manual_seed(1)), torch.ones(2, 7, dtype=torch.long)
    mask[1, 5:] = 0
    seen = Recorder(("gate", "diagonal"))
    found = lw.trace(model, ids, 3, attention_mask=mask)
    with torch.no_grad():
        model.eval()(ids, depth=3, attention_mask=mask, tap=seen)
    for t in range(3):
        gate, diagonal = seen.seen["gate", "core", t, 1], seen.seen["diagonal", "core", t, 0]
        for row, count in ((0, 7), (1, 5)):
            assert found.values["state_gate"][row, t].item() == pytest.approx(gate[row, :count].mean().item(), rel=1e-5)
            size = diagonal[row, :count].square().mean((-1, -2)).sqrt().mean()
            assert found.core("diagonal")[row, t, 0].item() == pytest.approx(size.item(), rel=1e-5)
    assert not {"state_gate", "diagonal"} & set(lw.trace(noisy("huginn-tiny"), ids, 2).values)


def test_gate_and_diagonals_are_captured():
    model, ids = noisy("ouroboros-qwen2.5-3b-tiny", std=0.3), torch.arange(6)[None]
    captured = lw.trace(model, ids, 2, capture={"gate": [-1], "diagonal": [0, -1]}).captured
    assert captured["gate"].shape == (1, 2, 1, 32) and captured["diagonal"].shape[2:] == (2, 7, 4)


COUNTS = st.integers(0, 4)


@given(COUNTS, st.integers(1, 4), COUNTS, st.integers(1, 5))
def test_index_and_name_are_inverse(prelude: int, core: int, coda: int, steps: int):
    places = Places(prelude, core, coda, steps)
    assert [places.index(*places.name(i)) for i in range(places.count)] == list(range(places.count))
    assert all(places.name(i)[0] == "core" for i in range(places.count)[places.looped])
    assert len(range(places.count)[places.looped]) == core * steps


def test_places_are_in_the_order_of_the_pass():
    model, recorder = noisy("huginn-tiny"), Recorder(("residual",))
    model(torch.tensor([[1, 2, 3]]), depth=3, tap=recorder)
    places = Places.of(model.config, 3)
    assert [places.name(i) for i in range(places.count)] == [key[1:] for key in recorder.seen]


def test_one_step_is_a_whole_pass_of_depth_one():
    places = Places(2, 3, 1, 4)
    assert [places.name(i) for i in places.one_step(2)] == [
        ("prelude", 0, 0), ("prelude", 0, 1), ("core", 2, 0), ("core", 2, 1), ("core", 2, 2), ("coda", 0, 0),
    ]  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("name", ["huginn-tiny", "ouro-1.4b-tiny", "retrofit-llama-1b-tiny", "asura-tiny"])
def test_the_coda_lens_is_what_each_depth_answers(name: str):
    model = noisy(name)
    found = trace(model, IDS, 3, attention_mask=REAL, collect=("lens",)).values
    out = model(IDS, attention_mask=REAL, depth=3, output_steps=True)
    last = torch.tensor([8, 5, 8])
    said = [logits[torch.arange(3), last].log_softmax(-1) for logits in out.step_logits]
    for t in range(3):
        assert torch.equal(found["answer_token"][:, t], said[t].argmax(-1))
        assert gap(found["answer_entropy"][:, t], -(said[t].exp() * said[t]).sum(-1)) < 1e-5
        if t:
            assert gap(found["answer_change"][:, t], prediction_divergence(said[t], said[t - 1])) < 1e-5
    assert found["answer_change"][:, 0].isnan().all()


@pytest.mark.parametrize("name", ["huginn-tiny", "ouro-1.4b-tiny", "retrofit-llama-1b-tiny"])
def test_the_lens_of_the_last_layer_is_the_answer(name: str):
    found = trace(noisy(name), IDS, 3, attention_mask=REAL, collect=("lens",)).values
    assert torch.equal(found["lens_token"][:, -1], found["answer_token"][:, -1])
    assert gap(found["lens_entropy"][:, -1], found["answer_entropy"][:, -1]) < 1e-5


IDS = torch.randint(0, 96, (3, 9), generator=torch.Generator().manual_seed(1))
REAL = torch.ones_like(IDS)
REAL[1, 6:] = 0
REAL[2, :2] = 0
KINDS = {
    "plain": ("ouro-1.4b-tiny", {}, None),
    "padded": ("huginn-tiny", {}, REAL),
    "grouped": ("ouro-1.4b-tiny", {"num_attention_heads": 4, "num_key_value_heads": 2}, REAL),
    "window": ("ouro-1.4b-tiny", {"sliding_window": 3}, None),
    "padded window": ("ouro-1.4b-tiny", {"sliding_window": 3}, REAL),
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
    maps, recorder = dense_maps(model, IDS, 3, REAL)
    view = View.of(place_tokens(*IDS.shape, IDS.device, attention_mask=REAL), None)
    pairs = [(recorder.seen["query", "core", t, 1], recorder.seen["key", "core", t, 1]) for t in range(3)]
    for chunk in (1, 2**20):
        for t in (1, 2):
            _, change = sum_maps(*pairs[0], view, pairs[t], chunk=chunk)
            apart = (maps["core", t, 1] - maps["core", 0, 1]) * REAL[:, None, :, None]
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
