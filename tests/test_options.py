"""What every number on the command line must be."""

import pytest
import typer

from loopwright.options import seed_of, whole


def test_numbers_that_no_machine_word_holds_are_refused():
    assert [whole(n) for n in (None, -5, 0, 2**31 - 1)] == [None, -5, 0, 2**31 - 1]
    assert [seed_of(n) for n in (None, 0, 2**63 - 1)] == [None, 0, 2**63 - 1]
    for function, value in ((whole, 2**31), (whole, -(10**30)), (seed_of, -1), (seed_of, 2**63)):
        with pytest.raises(typer.BadParameter, match=str(value)):
            function(value)
