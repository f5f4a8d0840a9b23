"""A trace is what dense maps and whole residuals give, padding counts nowhere, and watching changes nothing."""

import pytest
import torch

import loopwright as lw
from loopwright.analysis.trace.collect import (
    AttentionStatistics,
    Capture,
    EntropyStatistics,
    LensStatistics,
    ResidualStatistics,
    Sheet,
    View,
    Watcher,
)
from loopwright.analysis.trace.places import Places
from loopwright.analysis.trace.trace import DEPTH, Trace, trace
from loopwright.metrics.attention import attention_distance, col_sum_concentration, mixing_score, sink_score
from loopwright.metrics.states import farthest_maps
from loopwright.model.presets import PRESETS
from loopwright.model.span import place_tokens
from tests.analysis.dense import dense_maps
from tests.analysis.trace.test_collect import IDS, KINDS, REAL
from tests.cases import UNLIKE, gap, noisy, some
from tests.generation.tiny import STORIES


def same(a: torch.Tensor, b: torch.Tensor, within: float = 1e-5) -> bool:
    assert a.shape == b.shape
    nan = a.isnan() if a.is_floating_point() else torch.zeros_like(a, dtype=torch.bool)
    assert torch.equal(nan, b.isnan() if b.is_floating_point() else nan)
    return gap(a[~nan].double(), b[~nan].double()) <= within


@pytest.mark.parametrize("kind", KINDS)
def test_streaming_is_dense_for_every_attention_metric(kind: str):
    name, changes, mask = KINDS[kind]
    model = noisy(name, **changes)
    found = trace(model, IDS, 3, attention_mask=mask)
    maps, _ = dense_maps(model, IDS, 3, mask)
    valid = torch.ones_like(IDS).bool() if mask is None else mask.bool()
    assert len(maps) == found.places.count
    for place, whole in maps.items():
        at = found.places.index(*place)
        assert gap(found.values["colsum"][:, at], col_sum_concentration(whole, valid)) < 1e-5
        assert gap(found.values["mixing"][:, at], mixing_score(whole, valid)) < 1e-5
        scores, first = sink_score(whole, valid), valid.int().argmax(1)
        assert gap(found.values["sink_most"][:, at], scores.amax(-1)) < 1e-5
        assert gap(found.values["sink_first"][:, at], scores[torch.arange(3), :, first]) < 1e-5
        stack, t, layer = place
        for name, other in (("step_attention", t - 1), ("fixed_attention", 2)):
            if stack == "core" and other >= 0:
                apart = ((whole - maps["core", other, layer]) * valid[:, None, :, None]).square().sum((-2, -1)).sqrt()
                assert gap(found.values[name][:, at], apart.mean(1)) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_the_farthest_map_is_found_and_compared_as_from_whole_maps(kind: str):
    name, changes, mask = KINDS[kind]
    model = noisy(name, std=0.5, core_layers=4, **changes)
    found = trace(model, IDS, 3, attention_mask=mask)
    maps, _ = dense_maps(model, IDS, 3, mask)
    valid = torch.ones_like(IDS).bool() if mask is None else mask.bool()
    ends = torch.stack([maps["core", 2, layer] for layer in range(4)])
    chosen = farthest_maps(ends, valid)
    assert len(chosen.unique()) > 1 and not torch.equal(chosen, chosen[:, :1].expand(-1, 3))  # rows have farthest ones of their own
    for (stack, t, layer), whole in maps.items():
        at = found.values["far_attention"][:, found.places.index(stack, t, layer)]
        if stack == "core":
            far = attention_distance(whole, ends[chosen[layer], torch.arange(3)], valid=valid).mean(1)
            assert gap(at, far) < 1e-5
        else:
            assert at.isnan().all()
    last = found.core("far_attention")[:, -1]
    each = torch.stack([attention_distance(end, ends, valid=valid).mean(-1).amax(0) for end in ends], dim=1)
    assert gap(last, each) < 1e-5  # no other layer's last map is farther


def test_one_layer_has_no_farthest_map_and_no_maps_no_distance():
    lonely = trace(noisy("ouro-1.4b-tiny", core_layers=1), IDS, 3)
    assert lonely.values["far_attention"].isnan().all() and lonely.values["fixed_attention"].isfinite().all()
    assert not {"fixed_attention", "far_attention"} & set(trace(noisy("huginn-tiny"), IDS, 3, collect=("residual", "fixed")).values)


@torch.no_grad()
def test_residual_numbers_are_those_of_whole_residuals():
    model = noisy("huginn-tiny")
    found = trace(model, IDS, 4, attention_mask=REAL)
    _, recorder = dense_maps(model, IDS, 4, REAL)
    seen = {key[1:]: value for key, value in recorder.seen.items() if key[0] == "residual"}

    def mean(tokens: torch.Tensor) -> torch.Tensor:
        return (tokens * REAL).sum(1) / REAL.sum(1)

    for (stack, t, layer), x in seen.items():
        at = found.places.index(stack, t, layer)
        assert gap(found.values["norm"][:, at], mean(x.norm(dim=-1))) < 1e-5
        assert gap(found.values["largest"][:, at], (x * REAL[..., None]).abs().amax((1, 2))) < 1e-5
        if stack != "core":
            assert found.values["step_norm"][:, at].isnan().all()
            continue
        ends = [seen["core", 3, other] for other in range(model.config.core_layers)]
        assert gap(found.values["fixed_norm"][:, at], mean((x - ends[layer]).norm(dim=-1))) < 1e-5
        cosines = torch.stack([mean(torch.cosine_similarity(end, ends[layer], -1)) for end in ends], dim=1)
        far = torch.stack([ends[i][row] for row, i in enumerate(cosines.argmin(1).tolist())])
        assert gap(found.values["far_cosine"][:, at], mean(torch.cosine_similarity(x, far, -1))) < 1e-5
        if t:
            before = seen["core", t - 1, layer]
            assert gap(found.values["step_norm"][:, at], mean((x - before).norm(dim=-1))) < 1e-5
            assert gap(found.values["step_cosine"][:, at], mean(torch.cosine_similarity(x, before, -1))) < 1e-5
    assert same(found.core("fixed_norm")[:, -1], torch.zeros(3, model.config.core_layers))


@pytest.mark.long
@pytest.mark.parametrize("name", ["huginn-tiny", "ouro-1.4b-tiny", "retrofit-llama-1b-tiny"])
def test_padded_is_alone(name: str):
    model = noisy(name, std=0.3, core_layers=3)  # so that each row has farthest layers of its own
    together = list(trace(model, IDS, 4, attention_mask=REAL, capture={"residual": [0, -1], "state": [-1]}).examples())
    for row, example in enumerate(together):
        ids = IDS[row : row + 1, REAL[row].bool()]
        alone = trace(model, ids, 4, capture={"residual": [0, -1], "state": [-1]})
        assert torch.equal(example.input_ids, ids)
        assert set(example.values) == set(alone.values) and len(alone.values) > 20
        for key in alone.values:
            assert same(example.values[key], alone.values[key], 2e-3 if alone.values[key].dtype == torch.half else 2e-5), key
        for key in alone.captured:
            assert gap(example.captured[key], alone.captured[key]) < 1e-4


@torch.no_grad()
def test_watching_changes_no_bit():
    model = noisy("huginn-tiny")
    plain = model(IDS, attention_mask=REAL, depth=3).logits
    sheet = Sheet(Places.of(model.config, 3), View.of(place_tokens(*IDS.shape, IDS.device, attention_mask=REAL), None))
    collectors = [AttentionStatistics(sheet), ResidualStatistics(sheet), EntropyStatistics(sheet), LensStatistics(sheet, model)]
    watched = model(IDS, attention_mask=REAL, depth=3, tap=Watcher([*collectors, Capture(sheet, {"query": [0]})])).logits
    assert len(sheet.values) > 10
    assert torch.equal(watched, plain)


@pytest.mark.parametrize("name", some(PRESETS, UNLIKE))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_preset_is_traced(name: str, dtype: torch.dtype):
    model = noisy(f"{name}-tiny", std=0.3).to(dtype)
    ids = IDS % model.config.vocab_size
    found = trace(model, ids, 2, attention_mask=None if model.leaks_future else REAL)
    for key in ("colsum", "mixing", "norm", "entropy", "lens_entropy"):
        assert found.values[key].isfinite().all(), key
    assert found.core("fixed_cosine").isfinite().all() and found.core("step_norm")[:, 1:].isfinite().all()


def test_a_trace_in_a_notebook_is_a_few_lines():
    found = trace(noisy("huginn-tiny"), torch.randint(0, 60, (2, 12)), 4, capture={"residual": range(2)})
    said = repr(found)
    assert said.startswith("Trace(2 × 12 tokens, 4 steps; values: ") and "residual [2, " in said
    assert "tensor(" not in said and len(said) < 2000


def test_capture_is_the_tensor_itself():
    model = noisy("ouro-1.4b-tiny")
    found = trace(model, IDS, 3, attention_mask=REAL, capture={"mlp": [-1], "state": [1]})
    _, recorder = dense_maps(model, IDS, 3, REAL)
    last = torch.tensor([8, 5, 8])
    assert torch.equal(found.captured["mlp"][:, 2, 0], recorder.seen["mlp", "core", 1, 0][torch.arange(3), last])
    second = torch.tensor([1, 1, 3])
    assert torch.equal(found.captured["state"][:, 2, 0], recorder.seen["state", "core", 2, 2][torch.arange(3), second])
    with pytest.raises(ValueError, match=r"capture: token 6; allowed: -6 to 5"):
        trace(model, IDS, 3, attention_mask=REAL, capture={"mlp": [6]})
    with pytest.raises(ValueError, match=r"capture: unknown point \['logits'\]"):
        trace(model, IDS, 3, capture={"logits": [0]})


def test_a_dense_model_is_one_step():
    model = noisy("huginn-tiny").without_adapters()
    found = trace(model, IDS)
    assert found.places.steps == 1 and found.places.core == 0 and found.places.count == 6
    assert "fixed_norm" not in found.values and found.values["colsum"].isfinite().all()
    with pytest.raises(ValueError, match="depth: 128 was asked of a dense model"):
        trace(model, IDS, 128)


@pytest.mark.skipif(not STORIES.is_dir(), reason="the model is not here")
def test_a_released_dense_model():
    found = trace(lw.load(STORIES), torch.randint(0, 512, (2, 20)))
    assert found.values["colsum"].shape == (2, 5, 8) and isinstance(found, Trace)


def test_a_looped_model_runs_the_usual_depth_or_all_it_has():
    assert trace(noisy("ouro-1.4b-tiny", core_layers=1), IDS[:1, :3], collect=("residual",)).places.steps == DEPTH


def test_mistakes():
    model = noisy("huginn-tiny")
    with pytest.raises(ValueError, match="depth: 0; allowed"):
        trace(model, IDS, 0)
    with pytest.raises(ValueError, match="collect: unknown 'attentoin'"):
        trace(model, IDS, 2, collect=("attentoin",))
    with pytest.raises(ValueError, match="'fixed' compares"):
        trace(model, IDS, 2, collect=("fixed",))
    with pytest.raises(ValueError, match="holds no token"):
        trace(model, IDS, 2, attention_mask=torch.zeros_like(IDS))


def test_what_is_no_batch_of_rows_is_refused_in_one_line():
    model = noisy("huginn-tiny", max_position_embeddings=8)
    for ids in (IDS[0, :4], IDS[None], [[1, 2]], IDS[:, :4].float(), IDS[:, :0]):
        with pytest.raises(ValueError, match=r"input_ids: .*; allowed: a tensor of whole numbers, a row per sequence \[B, T\]"):
            trace(model, ids, 2)
    with pytest.raises(ValueError, match="attention_mask: shape"):
        trace(model, IDS[:, :4], 2, attention_mask=REAL[0, :4])


def test_a_row_beyond_the_context_is_refused_and_padding_is_no_part_of_it():
    model = noisy("huginn-tiny", max_position_embeddings=8)
    with pytest.raises(ValueError, match="input_ids: number 1 has 9 tokens; the model's context holds 8"):
        trace(model, IDS, 2)
    with pytest.raises(ValueError, match="input_ids: number 1 has 9 tokens"):
        trace(model, IDS, 2, attention_mask=REAL)
    padded = trace(model, IDS[1:], 2, attention_mask=REAL[1:])
    assert padded.valid.sum(1).tolist() == [6, 7] and trace(model, IDS[:, :8], 2).valid.all()


def test_a_capture_that_is_none_is_refused_in_one_line():
    model = noisy("huginn-tiny")
    for wrong in (["residual"], [], "residual", {"residual": -1}, {"residual": ["a"]}, {"residual": [0.5]}, {"residual": []}):
        with pytest.raises(ValueError, match=r"capture: .*; allowed: points with their tokens, as \{'residual': \[-1\]\}"):
            trace(model, IDS, 2, capture=wrong)
    kept = trace(model, IDS, 2, collect=(), capture={"residual": iter([0, -1])}).captured["residual"]
    assert torch.equal(kept, trace(model, IDS, 2, collect=(), capture={"residual": [0, -1]}).captured["residual"])


def test_dropout_is_off_while_traced_and_the_mode_comes_back():
    model = noisy("huginn-tiny", dropout=0.5).train()
    a, b = (trace(model, IDS, 2, collect=("residual",)) for _ in range(2))
    assert torch.equal(a.values["norm"], b.values["norm"]) and model.training


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["huginn-tiny", "ouro-1.4b-tiny"])
def test_the_gpu_gives_what_the_cpu_gives(name: str):
    model = noisy(name, std=0.3)
    here = trace(model, IDS, 4, attention_mask=REAL)
    there = trace(model.to("cuda"), IDS.to("cuda"), 4, attention_mask=REAL.to("cuda"))
    assert set(here.values) == set(there.values)
    for key, value in here.values.items():
        if value.is_floating_point():
            assert same(there.values[key].double(), value.double(), 2e-3 if value.dtype == torch.half else 1e-4), key
