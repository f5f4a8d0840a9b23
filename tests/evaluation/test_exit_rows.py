"""Exits from Python: the numbers of the engine's rules on rows, and what is refused."""

from __future__ import annotations

import pytest
import torch

import loopwright as lw
from loopwright.evaluation.exits import ExitEvaluation, early_exits, exit_specs, exit_words, of_rows
from tests.cases import noisy


@pytest.fixture(scope="module")
def rows() -> lw.TokenRows:
    ids = torch.randint(0, 90, (6, 9), generator=torch.Generator().manual_seed(0))
    return lw.TokenRows(ids, ids)


def test_the_numbers_are_those_of_the_report(rows: lw.TokenRows) -> None:
    model = noisy("ouro-1.4b-tiny").eval()
    found = lw.evaluate(model, data=rows, exit=["entropy:3", "all"], depths=3, batch=4)
    assert isinstance(found, ExitEvaluation)
    (name,) = found.reports
    part = of_rows(rows, 6, exact=False)
    specs = exit_specs(exit_words(["entropy:3", "all"]), model)
    wanted = early_exits(
        model, part.pairs(), specs, name=name, depth=3, units=part.units, exact=found[name].fixed[0].exact is not None
    )
    plain = found.to_dict()[name]
    assert [row["rule"] for row in plain] == [p.rule for p in (*wanted.fixed, *wanted.points, *wanted.oracle)]
    assert [row["loss"] for row in plain] == pytest.approx([p.loss for p in (*wanted.fixed, *wanted.points, *wanted.oracle)])
    assert {"entropy", "gate", "stable"} <= {row["rule"].split(":")[0] for row in plain}
    assert "depth:3" in found._repr_html_()


def test_what_cannot_be_measured_is_refused(rows: lw.TokenRows) -> None:
    model = noisy("huginn-tiny").eval()
    with pytest.raises(ValueError, match=r"depths: \[1, 2\] with exit; give one depth"):
        lw.evaluate(model, data=rows, exit="entropy", depths=[1, 2])
    with pytest.raises(ValueError, match="did you mean 'gate'"):
        lw.evaluate(model, data=rows, exit="gat")
    with pytest.raises(KeyError, match="'x' was not measured"):
        lw.evaluate(model, data=rows, exit="entropy:3", depths=2)["x"]
