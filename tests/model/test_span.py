"""Where tokens stand: every tensor of a span against a slow reading of the same rows, whole or in cached chunks."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loopwright as lw
from loopwright.model.keys.cache import LoopCache
from loopwright.model.parts.part import FIRST
from loopwright.model.passes import Pass, Place
from loopwright.model.span import last_marked, place_tokens, running_sum

CONFIG = lw.preset("ouro-1.4b-tiny")


@st.composite
def packed_rows(draw):
    """Rows of equal length: documents one after the other, padding anywhere, and where to cut the row into passes."""
    length, rows = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    valid, segments = [], []
    for _ in range(rows):
        steps = draw(st.lists(st.integers(0, 1), min_size=length, max_size=length))
        segments.append(torch.tensor(steps).cumsum(0).tolist())
        valid.append(draw(st.lists(st.booleans(), min_size=length, max_size=length)))
    cuts = sorted(draw(st.sets(st.integers(1, max(length - 1, 1)), max_size=3))) if length > 1 else []
    return valid, segments, cuts


def slow(valid: list[bool], segments: list[int]) -> tuple[list[set[int]], list[int], list[int]]:
    """Returns for each token the keys it sees, its position and its ordinal, by definition."""
    seen, positions, ordinals = [], [], []
    for i in range(len(valid)):
        # a padding token belongs to the document of the last real token before it
        own = next((segments[j] for j in range(i, -1, -1) if valid[j]), None)
        document = [j for j in range(i + 1) if valid[j] and segments[j] == own]
        seen.append(set(document) | {i})
        positions.append(max(len(document) - 1, 0))
        ordinals.append(max(len(document), 1))
    return seen, positions, ordinals


@settings(max_examples=60)
@given(packed_rows())
def test_chunked_spans_equal_the_definition(case):
    valid, segments, cuts = case
    rows, length = len(valid), len(valid[0])
    mask, ids = torch.tensor(valid), torch.tensor(segments)
    values = torch.randn(rows, length, 2, dtype=torch.float64)
    cache = LoopCache(CONFIG)
    start = 0
    for end in [*cuts, length]:
        if end == start:
            continue
        span = place_tokens(
            rows, end - start, torch.device("cpu"), cache=cache,
            attention_mask=mask[:, :end], segment_ids=ids[:, start:end],
        )  # fmt: skip
        cache.reserve(span, 1, values)
        p = Pass(span, None, None, True, cache)
        carried = cache.carried_sum("x", Place("core", FIRST, 0), p, values)
        sums = span.document_sum(values[:, start:end], carried)
        cache.write_sum("x", Place("core", FIRST, 0), sums, p)
        visible, causal = span.mask(None)
        ordinal = span.ordinal().expand(rows, -1)
        for b in range(rows):
            seen, positions, ordinals = slow(valid[b], segments[b])
            for i in range(start, end):
                if visible is None:
                    keys = set(range(i + 1)) if causal or end - start == 1 else None
                else:
                    keys = set(visible.expand(rows, -1, -1, -1)[b, 0, i - start].nonzero().flatten().tolist())
                assert keys == seen[i]
                assert span.positions.expand(rows, -1)[b, i - start] == positions[i]
                if valid[b][i]:
                    assert ordinal[b, i - start] == ordinals[i]
                    document = sorted(seen[i])
                    assert torch.allclose(sums[b, i - start], values[b, document].sum(0), atol=1e-5)
                    for back in range(ordinals[i]):
                        at = span.back(torch.full((rows, end - start), back))[b, i - start]
                        assert at == document[-1 - back]
        cache.advance(span)
        start = end
    assert cache.length == length


def test_plain_rows_need_no_tensors():
    span = place_tokens(3, 5, torch.device("cpu"), attention_mask=torch.ones(3, 5))
    assert span.plain
    assert span.mask(None) == (None, True)
    assert span.positions.tolist() == [[0, 1, 2, 3, 4]]
    assert place_tokens(3, 1, torch.device("cpu")).mask(None) == (None, True)
    cache = LoopCache(CONFIG)
    cache.reserve(span, 1, torch.empty(0))
    cache.advance(span)
    assert place_tokens(3, 1, torch.device("cpu"), cache=cache).mask(None) == (None, False)  # it sees what is held


@pytest.mark.parametrize("before", [False, True])
def test_the_last_marked_token_is_that_of_a_running_maximum(before):
    torch.manual_seed(0)
    for length, share in itertools.product((1, 2, 9, 40), (0.0, 0.1, 0.5, 1.0)):
        marked = torch.rand(5, length) < share
        latest = torch.where(marked, torch.arange(length), -1).cummax(1).values
        expected = torch.cat([torch.full((5, 1), -1), latest[:, :-1]], dim=1) if before else latest
        assert torch.equal(last_marked(marked, before=before), expected)


@pytest.mark.parametrize("offset", [0, 4])
def test_sliding_window(offset):
    cache = LoopCache(CONFIG)
    if offset:
        first = place_tokens(1, offset, torch.device("cpu"), cache=cache)
        cache.reserve(first, 1, torch.empty(0))
        cache.advance(first)
    span = place_tokens(1, 5, torch.device("cpu"), cache=cache)
    visible, _ = span.mask(3)
    for i in range(5):
        at = offset + i
        assert visible[0, 0, i].nonzero().flatten().tolist() == list(range(max(0, at - 2), at + 1))


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"attention_mask": torch.ones(2, 4)}, r"attention_mask: shape \(2, 4\); allowed: \(2, 5\)"),
        ({"attention_mask": torch.ones(2, 1, 5, 5)}, "attention_mask: shape"),
        ({"position_ids": torch.zeros(2, 3)}, "position_ids: shape"),
        ({"segment_ids": torch.zeros(1, 5)}, "segment_ids: shape"),
        ({"segment_ids": torch.full((2, 5), -1)}, "segment_ids: negative"),
    ],
)
def test_wrong_shapes_are_named(inputs, words):
    with pytest.raises(ValueError, match=words):
        place_tokens(2, 5, torch.device("cpu"), **inputs)


@pytest.mark.gpu
def test_a_running_sum_on_a_gpu_is_that_of_the_tokens_before() -> None:
    x = torch.randn(3, 70, 5, device="cuda", dtype=torch.float64, requires_grad=True)
    weights = torch.randn(3, 70, 5, device="cuda", dtype=torch.float64)
    (found,) = torch.autograd.grad((running_sum(x) * weights).sum(), x)
    (wanted,) = torch.autograd.grad((x.cumsum(1) * weights).sum(), x)
    torch.testing.assert_close(running_sum(x), x.cumsum(1))
    torch.testing.assert_close(found, wanted)


@given(packed_rows())
@settings(max_examples=200, deadline=None)
def test_positions_that_restart_say_what_segment_ids_say(case):
    """Real tokens stand in the same documents, whole and in cached chunks; what stands at padding says nothing."""
    valid, segments, cuts = case
    rows, length = len(valid), len(valid[0])
    mask, ids = torch.tensor(valid), torch.tensor(segments)
    positions = torch.tensor([slow(*row)[1] for row in zip(valid, segments, strict=True)]).where(mask, 0)
    by_ids, by_positions = LoopCache(CONFIG, rows=rows), LoopCache(CONFIG, rows=rows)
    for start, end in zip([0, *cuts], [*cuts, length], strict=True):
        spans = []
        for cache, said in (
            (by_ids, {"segment_ids": ids[:, start:end]}),
            (by_positions, {"position_ids": positions[:, start:end]}),
        ):
            span = place_tokens(rows, end - start, torch.device("cpu"), cache=cache, attention_mask=mask[:, :end], **said)
            cache.reserve(span, 1, torch.empty(0))
            cache.advance(span)
            spans.append(span)
        real = mask[:, start:end]
        firsts = [torch.zeros(rows, 1, dtype=torch.long) if span.plain else span.first for span in spans]
        assert torch.equal(*(first.expand(rows, end - start)[real] for first in firsts))
        assert torch.equal(*(span.positions.expand(rows, -1)[real] for span in spans))
        seen = [span.mask(None) for span in spans]
        full = [torch.ones(end, end).tril().bool()[start:][None, None] if visible is None else visible for visible, _ in seen]
        assert torch.equal(
            *(visible.expand(rows, 1, -1, -1)[real[:, None].unsqueeze(-1).expand(rows, 1, -1, end)] for visible in full)
        )


def test_positions_that_rise_are_one_document():
    """As do those of a prompt that begins later, or leaves some out; a restart after cached tokens begins a document."""
    assert place_tokens(1, 4, torch.device("cpu"), position_ids=torch.tensor([[3, 4, 9, 10]])).plain
    assert not place_tokens(1, 4, torch.device("cpu"), position_ids=torch.tensor([[3, 4, 4, 5]])).plain
    cache = LoopCache(CONFIG)
    for positions, plain in (([5, 6, 7], True), ([8, 9], True), ([9], False)):
        span = place_tokens(1, len(positions), torch.device("cpu"), cache=cache, position_ids=torch.tensor([positions]))
        assert span.plain == plain
        cache.reserve(span, 1, torch.empty(0))
        cache.advance(span)
    assert span.first is not None and span.first.tolist() == [[5]]
