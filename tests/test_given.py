"""Objects that were passed from Python."""

import pytest

from loopwright.given import Given


def test_it_is_never_built_from_a_recipe() -> None:
    with pytest.raises(ValueError, match=r"the data \(Mine\) was passed from Python, so the recipe cannot build it; pass it again"):
        Given("the data (Mine)")
