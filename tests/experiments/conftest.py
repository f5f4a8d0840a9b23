"""The studies' own code is tested apart from the package, by `make studies`; what the README claims of them is not."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what lies beside this file or below, but for the tests of what holds pages to their rows."""
    for item in items:
        if HERE in item.path.parents and not {HERE / "readme", HERE / "test_templates.py"} & {item.path, *item.path.parents}:
            item.add_marker(pytest.mark.studies)
