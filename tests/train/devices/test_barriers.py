"""A barrier stands between a loop that stores and what loads after it, in what torch's own compiler writes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from inspect import unwrap
from types import SimpleNamespace

import pytest
import torch
from torch._inductor.codegen.common import CSE
from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.utils import IndentedBuffer

import loopwright as lw
from loopwright.train.devices import compiled
from loopwright.train.devices.barriers import BARRIER, TAG, put_barriers

SECTIONS = ("indexing_code", "loads", "compute", "stores", "post_loop_combine", "post_loop_store")


class Kernel(TritonKernel):
    """What codegen_body reads of a kernel that sums over rows, in loops or with whole rows at once."""

    def __init__(self, *, looped: bool) -> None:
        for section in (*SECTIONS, "body"):
            setattr(self, section, IndentedBuffer())
        self.inside_reduction = True
        self.mix_order_reduction = self.cooperative_reduction = False
        self.range_trees = [SimpleNamespace(is_loop=looped, prefix="r0_", symt="r0", cache_clear=lambda: None)]  # type: ignore[list-item]
        self.pointer_advancements = defaultdict(dict)
        self.cse, self.outside_loop_vars = CSE(), set()  # type: ignore[assignment]

    def iteration_ranges_codegen_header(self, entry: object, code: IndentedBuffer) -> None:
        code.writeline("r0_index = r0_offset + r0_base")

    def codegen_reduction_indices(self, buffer: IndentedBuffer) -> None:
        pass

    def section(self, **lines: str) -> None:
        """Gathers lines as nodes of a graph do, and writes them."""
        for name, line in lines.items():
            getattr(self, name).writeline(line)
        self.codegen_body()


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(TritonKernel, "codegen_body", unwrap(TritonKernel.codegen_body))  # another test may have put them
    tag = torch.compiler.config.cache_key_tag
    put_barriers.cache_clear()
    yield
    torch.compiler.config.cache_key_tag = tag
    put_barriers.cache_clear()


def written(*, looped: bool) -> list[str]:
    kernel = Kernel(looped=looped)
    kernel.section(loads="a = tl.load(p)", post_loop_combine="s = tl.sum(a)")
    kernel.section(loads="b = tl.load(p)", stores="tl.store(q, b * s)")
    kernel.section(loads="c = tl.load(q)", stores="tl.store(p, c)")
    return [line.strip() for line in kernel.body.getvalue().splitlines()]


def test_a_barrier_stands_after_a_loop_that_stores() -> None:
    without = written(looped=True)
    assert BARRIER not in without
    put_barriers()
    lines = written(looped=True)
    assert [line for line in lines if line != BARRIER] == without
    stored, barrier, loaded = lines.index("tl.store(q, b * s)"), lines.index(BARRIER), lines.index("c = tl.load(q)")
    assert stored < barrier < loaded
    assert BARRIER not in lines[:stored]


def test_rows_that_are_summed_at_once_need_none() -> None:
    put_barriers()
    assert BARRIER not in written(looped=False)


def test_asking_twice_writes_one() -> None:
    put_barriers()
    put_barriers()
    assert written(looped=True).count(BARRIER) == 2  # two loops store


def test_kernels_of_before_are_not_taken_from_the_cache() -> None:
    torch.compiler.config.cache_key_tag = "mine"
    put_barriers()
    put_barriers()
    assert torch.compiler.config.cache_key_tag == f"mine {TAG}"


@pytest.mark.parametrize(("device", "asked"), [("cuda", 1), ("cpu", 0)])
def test_models_on_a_gpu_are_compiled_with_them(monkeypatch: pytest.MonkeyPatch, device: str, asked: int) -> None:
    calls: list[None] = []
    monkeypatch.setattr(compiled, "put_barriers", lambda: calls.append(None))
    model = lw.build("asura-tiny")
    monkeypatch.setattr(type(model), "device", torch.device(device))
    compiled.CompiledStep(model)
    assert len(calls) == asked
