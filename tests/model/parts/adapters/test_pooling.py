"""Controller pooling: causal, padding- and document-proof, the same cached as not, undone by a crop."""

import pytest
import torch

from loopwright.model.keys.cache import LoopCache
from loopwright.model.parts.adapters.controllers import POOLINGS
from loopwright.model.parts.part import FIRST
from loopwright.model.passes import Place
from tests.cases import gap, noisy

CAUSAL = ["prefix", "chunk", "token", "none"]


def controller_model(pooling: str):
    spec = {"kind": "controller", "rank": 4, "style": 8, "pooling": pooling, "leak_future": pooling == "sequence"}
    spec |= {"chunk": 4} if pooling == "chunk" else {}
    model = noisy("ouroboros-qwen2.5-3b-tiny", adapters=[spec])
    with torch.no_grad():
        model.adapters[0].heads.mul_(20)  # make the controller matter
    return model


def slow_pool(x: torch.Tensor, documents: list[list[int]], pooling: str) -> torch.Tensor:
    """Returns what each token of one row pools, by definition: x [T, W], documents as lists of token indices."""
    out = torch.zeros_like(x)
    for document in documents:
        for n, i in enumerate(document):
            seen = {"prefix": x[document[: n + 1]].mean(0), "chunk": x[document[: n - n % 4 + 1]].mean(0), "token": x[i]}
            out[i] = seen.get(pooling, 0.0)
    return out


@pytest.mark.parametrize("pooling", CAUSAL)
@torch.no_grad()
def test_pooling_is_its_definition(pooling):
    model = controller_model(pooling)
    ids = torch.randint(0, 96, (2, 11))
    segments = torch.tensor([[0] * 6 + [1] * 5, [0] * 11])
    mask = torch.ones(2, 11, dtype=torch.long)
    mask[1, :2] = 0
    mask[0, 10] = 0
    _, p = model.embed(ids, attention_mask=mask, segment_ids=segments)
    x = torch.randn(2, 11, 8)
    got = POOLINGS[pooling](x, "k", Place("core", FIRST, 0), p, 4)
    documents = [[list(range(6)), list(range(6, 10))], [list(range(2, 11))]]
    for row in range(2):
        expected = slow_pool(x[row], documents[row], pooling)
        real = mask[row].bool()
        assert gap(got[row][real], expected[real]) < 1e-6


@pytest.mark.parametrize("pooling", CAUSAL)
@torch.no_grad()
def test_cached_padded_packed_and_cropped_are_equal(pooling):
    model = controller_model(pooling)
    ids = torch.randint(0, 96, (1, 13))
    full = model(ids).logits
    assert gap(full, model.without_adapters()(ids).logits) > 1e-2
    cache = LoopCache(model.config)
    outs = [model(chunk, past_key_values=cache).logits for chunk in ids.split([5, 1, 1, 3, 3], dim=1)]
    assert gap(torch.cat(outs, 1), full) < 1e-5
    cache.crop(6)
    assert gap(model(ids[:, 6:], past_key_values=cache).logits, full[:, 6:]) < 1e-5
    # left-padded beside a longer row
    longer = torch.randint(0, 96, (1, 16))
    batch = torch.cat([torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], 1), longer])
    mask = torch.ones(2, 16, dtype=torch.long)
    mask[0, :3] = 0
    assert gap(model(batch, attention_mask=mask).logits[0, 3:], full[0]) < 1e-5
    # two documents in one row, cached in two pieces
    packed, segments = torch.cat([longer, ids], 1), torch.tensor([[0] * 16 + [1] * 13])
    assert gap(model(packed, segment_ids=segments).logits[:, 16:], full) < 1e-5
    cache = LoopCache(model.config)
    model(packed[:, :20], segment_ids=segments[:, :20], past_key_values=cache)
    assert gap(model(packed[:, 20:], segment_ids=segments[:, 20:], past_key_values=cache).logits, full[:, 4:]) < 1e-5


@pytest.mark.parametrize("pooling", CAUSAL)
@torch.no_grad()
def test_future_tokens_change_nothing(pooling):
    model = controller_model(pooling)
    ids = torch.randint(0, 96, (1, 12))
    other = ids.clone()
    other[0, 7:] = (other[0, 7:] + 5) % 96
    assert torch.equal(model(ids).logits[:, :7], model(other).logits[:, :7])


@pytest.mark.parametrize("pooling", CAUSAL)
@torch.no_grad()
def test_only_a_blind_controller_says_the_same_on_every_input(pooling):
    model = controller_model(pooling)
    said = []
    for seed in range(2):
        ids = torch.randint(0, 96, (1, 6), generator=torch.Generator().manual_seed(seed))
        e, p = model.embed(ids)
        said.append(model.adapters[0].diagonals(model.step_index(0), model.start_state(e, p), p))
    assert torch.equal(*said) == (pooling == "none")
    assert gap(said[0], torch.zeros_like(said[0])) > 1e-3


@torch.no_grad()
def test_sequence_pooling_leaks():
    with pytest.warns(UserWarning, match="leaks future"):
        model = controller_model("sequence")
    ids = torch.randint(0, 96, (1, 12))
    other = ids.clone()
    other[0, 7:] = (other[0, 7:] + 5) % 96
    assert gap(model(ids).logits[:, :7], model(other).logits[:, :7]) > 1e-4
