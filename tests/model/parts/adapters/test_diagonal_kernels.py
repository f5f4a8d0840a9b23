"""Where kernels may take the place of modulated maps: never where somebody looks on, or asks for derivatives that they lack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from loopwright.model.parts.adapters import diagonal


def a_map() -> nn.Linear:
    return nn.Linear(16, 16, bias=False).to(torch.bfloat16)


def test_a_map_as_it_was_made() -> None:
    linear = a_map()
    x = torch.zeros(1, 2, 16, dtype=torch.bfloat16)
    assert diagonal._as_it_was_made(linear, torch.bfloat16) and diagonal._unwatched(linear, x)
    assert not diagonal._as_it_was_made(linear, torch.float16)
    assert not diagonal._as_it_was_made(nn.Linear(16, 12).to(torch.bfloat16), torch.bfloat16), "rows of eight numbers"
    assert diagonal.kernel_dtype(x, [linear], 16) is None, "not on a GPU"


@contextmanager
def globally(register: Callable) -> Iterator[None]:
    handle = register(lambda *_: None)
    yield
    handle.remove()


def own_forward(linear: nn.Linear) -> None:
    linear.forward = lambda x: x  # type: ignore[method-assign]


def off_the_boundary(linear: nn.Linear) -> None:
    linear.weight = nn.Parameter(torch.zeros(16 * 16 + 1, dtype=torch.bfloat16)[1:].view(16, 16))


@pytest.mark.parametrize(
    "change",
    [
        lambda linear: linear.register_full_backward_pre_hook(lambda *_: None),
        own_forward,
        off_the_boundary,
        lambda linear: linear.to("meta"),
    ],
    ids=["backward pre-hook", "a forward of its own", "not on a boundary", "elsewhere"],
)
def test_what_must_not_be_passed_by(change: Callable[[nn.Linear], object]) -> None:
    linear = a_map()
    change(linear)
    assert not diagonal._unwatched(linear, torch.zeros(1))


@pytest.mark.parametrize("name", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_hooks_of_all_modules(name: str) -> None:
    with globally(getattr(torch.nn.modules.module, f"register_module_{name}_hook")):
        assert not diagonal._unwatched(a_map(), torch.zeros(1))
    assert diagonal._unwatched(a_map(), torch.zeros(1))


def test_derivatives_that_the_kernels_lack() -> None:
    seen: list[bool] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(diagonal.derived_otherwise())
        return x.square().sum()

    x = torch.ones(2)
    look(x)
    torch.func.jvp(look, (x,), (x,))
    torch.func.grad(look)(x)
    torch.func.vmap(look)(x[None])
    with torch.autograd.forward_ad.dual_level():
        look(torch.autograd.forward_ad.make_dual(x, x))
    assert seen == [False, True, True, True, True]
