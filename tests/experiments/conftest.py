"""The studies' own code is tested apart from the package, by `make studies`; what the README claims of them is not."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what lies beside this file, but for the check of the README's numbers."""
    for item in items:
        if HERE in item.path.parents and item.path.parent.name != "readme":
            item.add_marker(pytest.mark.studies)
