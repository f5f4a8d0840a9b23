"""A barrier stands between a loop that stores and what loads after it, in what torch's own compiler writes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from inspect import unwrap
from threading import Thread
from types import SimpleNamespace

import pytest
import torch
from torch._inductor.codegen.common import CSE
from torch._inductor.codegen.simd import SIMDKernel
from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.utils import IndentedBuffer

import loopwright as lw
from loopwright.training import compile as compiled
from loopwright.training.compile import BARRIER, TAG, _put_once, put_barriers, why_not

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
    for once in (_put_once, why_not):
        once.cache_clear()
    yield
    torch.compiler.config.cache_key_tag = tag
    for once in (_put_once, why_not):
        once.cache_clear()


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


def test_another_thread_takes_none_of_them_either() -> None:
    tags: list[str] = []

    def put() -> None:
        put_barriers()
        tags.append(torch.compiler.config.cache_key_tag)

    put_barriers()
    thread = Thread(target=put)
    thread.start()
    thread.join()
    assert [tag.split().count(TAG) for tag in tags] == [1]
    assert written(looped=True).count(BARRIER) == 2


def other_torch(kernel: object) -> None:
    """A method of another torch, which keeps what it writes elsewhere."""


@pytest.mark.parametrize("absent", [True, False])
def test_a_torch_of_other_names_leaves_the_model_as_written(monkeypatch: pytest.MonkeyPatch, *, absent: bool) -> None:
    """auto says so in a line, and true is an error of one line."""
    if absent:
        monkeypatch.delattr(TritonKernel, "codegen_body")
        monkeypatch.delattr(SIMDKernel, "codegen_body")  # the base has one that raises
    else:
        monkeypatch.setattr(TritonKernel, "codegen_body", other_torch)
    monkeypatch.setattr(compiled, "can_compile", lambda: True)
    wanted, said = compiled.should_compile("auto", torch.device("cuda"), alike=True)
    assert not wanted and said is not None and "as it is written" in said and torch.__version__ in said
    with pytest.raises(ValueError, match="compile: false"):
        put_barriers()


@pytest.mark.long
@pytest.mark.parametrize(("device", "asked"), [("cuda", 1), ("cpu", 0)])
def test_models_on_a_gpu_are_compiled_with_them(monkeypatch: pytest.MonkeyPatch, device: str, asked: int) -> None:
    calls: list[None] = []
    monkeypatch.setattr(compiled, "put_barriers", lambda: calls.append(None))
    model = lw.build("asura-tiny")
    monkeypatch.setattr(type(model), "device", torch.device(device))
    compiled.CompiledStep(model)
    assert len(calls) == asked
