"""A pass that cannot be compiled: a run that compiles unasked goes on as written, one that was asked to ends with one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException

from tests.training.test_compared import auto, compiler, same, trained

__all__ = ["auto"]  # a fixture


def failing(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    """A torch.compile that raises in the backward pass of a step."""

    def spoil(gradient: Tensor) -> Tensor:
        raise error("ptxas is missing\nand more lines")

    compiler(spoil, monkeypatch)


@pytest.mark.usefixtures("auto")
def test_it_is_left_where_nobody_asked_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right, _ = trained(tmp_path / "right", compile=False)
    failing(monkeypatch, TorchDynamoException)
    found, told = trained(tmp_path / "found")
    assert same(found, right)
    (line,) = told
    assert line.startswith("compile: in a compiled pass the compiler failed: ptxas is missing (torch ")


def test_it_ends_the_run_where_it_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, TorchDynamoException)
    with pytest.raises(ValueError, match=r"the compiler failed: ptxas is missing .* compile: false trains without it"):
        trained(tmp_path, compile=True)


@pytest.mark.usefixtures("auto")
def test_other_errors_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, ArithmeticError)
    with pytest.raises(ArithmeticError, match="ptxas"):
        trained(tmp_path)
