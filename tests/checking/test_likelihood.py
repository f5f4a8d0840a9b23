"""A loss is told as a likelihood only where the causality check passes."""

from __future__ import annotations

import pytest
import torch

import loopwright as lw
from loopwright.checking.probes import Verdict
from loopwright.evaluation import likelihood as module
from loopwright.evaluation.likelihood import causality_of, need_likelihood
from tests.cases import noisy
from tests.leaks import LEAKS, leaking


def test_a_leak_that_has_not_been_trained_yet_is_refused_too() -> None:
    """Its heads are zero, so that nothing leaks so far; what it would learn is no likelihood all the same."""
    spec = {"kind": "controller", "rank": 4, "style": 8, "pooling": "sequence", "leak_future": True}
    with pytest.warns(UserWarning, match="leaks future"):
        fresh = lw.build("ouroboros-qwen2.5-3b-tiny", adapters=[spec])
    with pytest.raises(ValueError, match="not causal"):
        need_likelihood(fresh)


@pytest.mark.filterwarnings("ignore:controller. pooling")
@pytest.mark.parametrize("name", LEAKS)
def test_each_way_to_see_the_future_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = leaking(name, monkeypatch)
    assert causality_of(model).passed is False
    with pytest.raises(ValueError, match="evaluate: mine is not causal"):
        need_likelihood(model, "mine")


def test_a_model_that_makes_no_numbers_is_not_called_a_leak() -> None:
    model = noisy("universal-tiny")
    with torch.no_grad():
        [*model.core.parameters()][-1].view(-1)[0] = float("nan")  # past attention, which hides NaN scores on some processors
    for marked in (False, True):
        with pytest.raises(
            ValueError, match=r"evaluate: the model has no loss, since its logits are not finite \(\d+ of \d+ logits"
        ):
            need_likelihood(model, marked=marked)


def test_a_verdict_that_is_known_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, failed = noisy("universal-tiny"), Verdict(False, "token 3 moved")
    monkeypatch.setattr(module, "check", lambda *a, **k: pytest.fail("asked"))
    assert need_likelihood(model, known=Verdict(True, "")).passed
    with pytest.raises(ValueError, match=r"evaluate: mine is not causal, .* \(token 3 moved\); allowed: a text"):
        need_likelihood(model, "mine", known=failed)
    assert need_likelihood(model, known=failed, marked=True) is failed
