"""Runs the sweep: `python -m experiments.inside.random_init OUT`."""

import sys

from experiments.inside.random_init.run import STUDY

if __name__ == "__main__":
    sys.exit(STUDY.main())
