"""Whole tensors and spread ones. With several processes: tests/training/test_world_size.py."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from loopwright.training.optim import EllisAdam, PackedMuon, spread, whole


def test_a_tensor_of_one_process_is_whole() -> None:
    x = torch.randn(3)
    assert whole(x) is x and spread(x, torch.zeros(3)) is x


def test_spread_parameters_move_as_whole_ones(tmp_path: os.PathLike[str]) -> None:
    """Both optimisers that are our own, on tensors as a run that shards them holds them."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        for kind in (EllisAdam, PackedMuon):
            torch.manual_seed(0)
            weights, ends = [torch.randn(4, 6) for _ in range(2)], []
            for held in (False, True):
                named = [
                    (name, torch.nn.Parameter(distribute_tensor(w.clone(), mesh, [Shard(0)]) if held else w.clone()))
                    for name, w in zip(("m.gate_proj.weight", "m.up_proj.weight"), weights, strict=True)
                ]
                options = {"betas": (0.9, 0.95)} if kind is EllisAdam else {}
                optimiser = kind(named, lr=0.1, **options)  # type: ignore[arg-type]
                for seed in range(2):
                    for place, (_, p) in enumerate(named):
                        grad = torch.randn(4, 6, generator=torch.Generator().manual_seed(2 * seed + place))
                        p.grad = spread(grad, p)
                    optimiser.step()
                assert all(isinstance(p.data, DTensor) == held for _, p in named)
                ends.append([whole(p.detach()) for _, p in named])
            assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    finally:
        dist.destroy_process_group()
