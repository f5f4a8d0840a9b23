"""Estimates: they grow with what grows, and the batch that is said to fit does."""

from dataclasses import replace

import torch

import loopwright as lw
from loopwright.analysis.study import fitting_batch, trace_bytes

OURO = lw.preset("ouro-1.4b")
BF16 = torch.bfloat16


def total(**changes: int) -> int:
    return sum(trace_bytes(OURO, **{"batch": 8, "length": 128, "depth": 128, "dtype": BF16} | changes).values())


def test_an_estimate_grows_with_batch_length_and_depth():
    assert total() < total(batch=16) and total() < total(length=256) and total() < total(depth=256)


def test_depth_costs_numbers_alone():
    few, many = (trace_bytes(OURO, batch=8, length=128, depth=depth, dtype=BF16) for depth in (1, 128))
    assert {name for name in few if few[name] != many[name]} == {"numbers"}


def test_what_is_held_is_every_layers_tensors_the_state_and_those_of_one_layer_picked_row_by_row():
    one, two = (
        trace_bytes(replace(OURO, core_layers=layers), batch=8, length=128, depth=4, dtype=BF16)["held"] for layers in (1, 2)
    )
    layer = two - one - 8 * OURO.vocab_size * 4  # what the lens says of a layer
    assert layer == 8 * 128 * (OURO.hidden_size + 2 * OURO.num_attention_heads * OURO.head_dim) * 2
    assert one - 8 * OURO.vocab_size * 4 * 4 == 3 * layer


def test_maps_stop_growing():
    a, b = (trace_bytes(OURO, batch=8, length=length, depth=1, dtype=BF16)["maps"] for length in (4096, 8192))
    assert a == b


def test_the_batch_that_fits():
    sizes = {"length": 128, "depth": 128, "dtype": BF16}
    weights = trace_bytes(OURO, batch=1, **sizes)["weights"]
    free = total(batch=5) - weights
    assert fitting_batch(OURO, batch=8, free=free, **sizes) == 5
    assert fitting_batch(OURO, batch=4, free=free, **sizes) == 4
    assert fitting_batch(OURO, batch=8, free=0, **sizes) == 0
