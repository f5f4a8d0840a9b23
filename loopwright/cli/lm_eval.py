"""`loopwright-lm-eval`: the command line of lm-eval, in a process in which transformers knows our models.

lm-eval has no place where a package could register itself, and opens folders with transformers' Auto classes, which know
loopwright's models only where loopwright was imported. So it is imported first; every argument is lm-eval's own.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec


def main() -> None:
    """Runs lm-eval on the arguments of this process; exits 2 in one line where it is not installed."""
    if find_spec("lm_eval") is None:
        print("loopwright-lm-eval: lm-eval is not installed; pip install 'loopwright[eval]'", file=sys.stderr)
        sys.exit(2)
    import_module("lm_eval.__main__").cli_evaluate()


if __name__ == "__main__":
    main()
