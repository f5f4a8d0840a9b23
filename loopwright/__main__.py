"""`python -m loopwright` is the command line."""

from loopwright.cli import main

main()
