"""Runs the sweep: `python -m experiments.inside.random_init OUT`."""

import sys

from experiments.inside.random_init.run import main

if __name__ == "__main__":
    sys.exit(main())
