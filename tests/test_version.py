"""The version stands in one place: the package, its metadata and the file agree."""

from importlib.metadata import version

import loopwright as lw
from loopwright.version import VERSION


def test_one_version():
    assert lw.__version__ == VERSION == version("loopwright")
