"""`python -m loopwright.cli` is the command line too."""

from loopwright.cli import main

main()
