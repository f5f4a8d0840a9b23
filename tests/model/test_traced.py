"""A pass that is recorded to run again (torch.compile, torch.export, torch.jit.trace) = the pass as written, at other sizes, and
the model is as it was."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.export import Dim

import loopwright as lw
from loopwright.model.parts.state import inverse_erf
from loopwright.model.traced import cached_constant, is_recorded, is_unguarded, may_be_kept
from loopwright.training.objectives.jacobian import windows
from loopwright.training.objectives.losses import _on
from tests.cases import SOME_TINY_CASES, TINY_CASES, gap, noisy

FRESH = ["ouro-1.4b-tiny", "huginn-tiny", "ouroboros-qwen2.5-3b-tiny"]
SIZES = [(2, 7), (3, 11), (1, 5), (4, 2), (2, 1)]


def small(name: str, **changes: object) -> lw.LoopedForCausalLM:
    """A model of two steps that no pass has run through."""
    return noisy(name, depth=2, **changes)


def rows(size: tuple[int, int], seed: int = 0) -> tuple[Tensor, Tensor]:
    """Tokens, and a mask with padding on the left of the first row and on the right of the last."""
    ids = torch.randint(0, 15, size, generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    if size[1] > 4:
        mask[0, :2] = 0
    if min(size) > 2:
        mask[-1, -3:] = 0
    return ids, mask


def logits(model: lw.LoopedForCausalLM, input_ids: Tensor, **options: object) -> Tensor:
    with torch.no_grad():
        return model(input_ids, use_cache=False, **options).logits


def dynamic(*names: str) -> dict[str, dict[int, Dim]]:
    batch, length = Dim("batch", max=64), Dim("length", max=120)
    return {name: {0: batch, 1: length} for name in names}


def test_nothing_is_recorded_in_a_plain_pass():
    assert not is_recorded() and not is_unguarded() and may_be_kept(torch.zeros(1))
    assert not may_be_kept(torch.nn.Parameter(torch.zeros(1)))


@pytest.mark.parametrize("rope", [{}, {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}}])
def test_rotary_angles_made_of_stand_ins_are_not_kept(rope):
    from torch._subclasses.fake_tensor import FakeTensorMode

    model, (ids, _) = small("ouro-1.4b-tiny", **rope), rows((2, 7))
    expected = logits(small("ouro-1.4b-tiny", **rope), ids)
    with FakeTensorMode(allow_non_fake_inputs=True):
        logits(model, ids)
    assert torch.equal(logits(model, ids), expected)


@pytest.mark.parametrize("make", [partial(_on, torch.device("cpu")), partial(windows, 3, torch.device("cpu"))])
def test_no_table_of_a_module_keeps_what_stands_for_others(make):
    from torch._subclasses.fake_tensor import FakeTensorMode

    key = (0.25, 0.75) if make.func is _on else 7
    with FakeTensorMode():
        assert type(make(key)) is not Tensor
    assert type(make(key)) is Tensor and make(key) is make(key)


def test_what_is_kept_is_bounded():
    made = []

    @cached_constant(2)
    def table(n: int) -> Tensor:
        made.append(n)
        return torch.zeros(n)

    for n in (1, 2, 1, 3, 2, 1):
        assert table(n).shape == (n,)
    assert made == [1, 2, 3, 1]


def test_nothing_is_kept_while_a_pass_is_recorded(monkeypatch):
    model, (ids, mask) = small("ouro-1.4b-tiny"), rows((2, 7))
    with monkeypatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        logits(model, ids, attention_mask=mask)
    assert model.rotary._tables == {}
    logits(model, ids)
    assert [type(frequencies) for frequencies, _ in model.rotary._tables.values()] == [Tensor]


def test_the_inverse_of_erf_as_it_is_exported(monkeypatch):
    x = torch.linspace(-0.9973, 0.9973, 100_001)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    assert gap(inverse_erf(x), torch.erfinv(x)) < 5e-6
    assert gap(torch.erf(inverse_erf(x)), x) < 2e-7
    assert inverse_erf(torch.zeros(1)).item() == 0


@pytest.mark.long
@pytest.mark.parametrize("name", FRESH)
def test_a_model_that_was_exported_before_it_ran_still_works(name):
    model, twin, (ids, _) = small(name), small(name), rows((2, 7))
    for _ in range(2):  # the second export finds nothing of the first
        program = torch.export.export(model, (), {"input_ids": ids}).module()
        assert gap(program(input_ids=ids).logits, logits(twin, ids)) < 1e-5
    assert type(model(ids).logits) is Tensor
    assert torch.equal(logits(model, ids), logits(twin, ids))
    options = {"max_new_tokens": 4, "do_sample": False}
    expected = twin.generate(ids, **options)
    assert torch.equal(model.generate(ids, **options), expected)
    with lw.Engine(model, max_rows=2, max_tokens=64) as engine:
        assert engine.submit(ids[0].tolist(), max_new_tokens=4).result(60).tokens == expected[0, 7:].tolist()
    model.train()(ids, labels=ids).loss.backward()


@pytest.mark.long
@pytest.mark.parametrize("name", SOME_TINY_CASES)
def test_an_exported_program_at_other_sizes(name):
    model, (ids, mask) = small(name), rows((2, 7))
    program = torch.export.export(model, (), {"input_ids": ids}, dynamic_shapes=dynamic("input_ids")).module()
    for size in SIZES[:4]:
        assert gap(program(input_ids=rows(size)[0]).logits, logits(model, rows(size)[0])) < 1e-5
    given = {"input_ids": ids, "attention_mask": torch.ones_like(mask)}  # what the mask holds now says nothing of later
    program = torch.export.export(model, (), given, dynamic_shapes=dynamic(*given)).module()
    for size in SIZES[:4]:
        ids, mask = rows(size)
        for visible in (mask, torch.ones_like(mask)):
            found = program(input_ids=ids, attention_mask=visible).logits
            assert gap(found, logits(model, ids, attention_mask=visible)) < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("name", SOME_TINY_CASES)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_traced_program_at_other_sizes(name):
    model, (ids, mask) = small(name), rows((2, 7))
    with torch.no_grad():
        plain = torch.jit.trace(model, (ids,), strict=False, check_trace=False)
        padded = torch.jit.trace(model, (ids, torch.ones_like(mask)), strict=False, check_trace=False)
    for size in SIZES:
        ids, mask = rows(size)
        assert gap(plain(ids)["logits"], logits(model, ids)) < 1e-5
        assert gap(padded(ids, mask)["logits"], logits(model, ids, attention_mask=mask)) < 1e-5
    assert torch.equal(logits(model, ids), logits(small(name), ids))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("way", ["export", "trace"])
def test_a_window_holds_at_lengths_that_were_not_recorded(way):
    """Recorded at a length that fits the window, and run at one that does not."""
    model = small("ouro-1.4b-tiny", sliding_window=8)
    ids, long = rows((2, 7))[0], rows((2, 20))[0]
    if way == "export":
        program = torch.export.export(model, (), {"input_ids": ids}, dynamic_shapes=dynamic("input_ids")).module()
        found = program(input_ids=long).logits
    else:
        found = torch.jit.trace(model, (ids,), strict=False, check_trace=False)(long)["logits"]
    assert gap(found, logits(model, long)) < 1e-5


@pytest.mark.long
def test_documents_of_a_row_in_an_exported_program():
    model, (ids, _) = small("ouroboros-qwen2.5-3b-tiny"), rows((2, 9))
    given = {"input_ids": ids, "segment_ids": torch.zeros_like(ids)}
    program = torch.export.export(model, (), given, dynamic_shapes=dynamic(*given)).module()
    ids, segments = rows((3, 12))[0], torch.tensor([[0] * 5 + [1] * 7, [0] * 12, [0] * 2 + [1] * 3 + [2] * 7])
    assert gap(program(input_ids=ids, segment_ids=segments).logits, logits(model, ids, segment_ids=segments)) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY_CASES)
@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_a_compiled_model_at_other_sizes(name, padded):
    """One graph for each: nothing breaks it, whatever batch and length come."""
    torch.compiler.reset()
    model = small(name)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for size in [*SIZES, (3, 13)]:
        ids, mask = rows(size)
        options = {"attention_mask": mask} if padded else {}
        assert gap(compiled(ids, **options).logits, logits(model, ids, **options)) < 1e-5


@pytest.mark.slow
def test_a_compiled_model_trains_at_other_sizes():
    torch.compiler.reset()
    model, twin = small("ouro-1.4b-tiny").train(), small("ouro-1.4b-tiny").train()
    compiled = torch.compile(model, fullgraph=True)
    for size in [(2, 7), (3, 11), (1, 5)]:
        ids, mask = rows(size)
        options = {"labels": ids, "attention_mask": mask}
        found, expected = compiled(ids, **options).loss, twin(ids, **options).loss
        assert gap(found, expected) < 1e-5
        found.backward()
        expected.backward()
    for (name, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        if other.grad is None:  # of a part that nothing read: some versions of torch write zeros
            assert one.grad is None or not one.grad.any(), name
        else:
            assert gap(one.grad, other.grad) < 1e-4, name


@pytest.mark.long
def test_the_example_of_the_page():
    page = Path(__file__).parents[2] / "docs" / "export.md"
    seen: dict[str, object] = {}
    exec(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)[0], seen)
    given, model = seen["given"], seen["model"]
    assert gap(seen["program"](**given).logits, logits(model, **given)) < 1e-5
