"""The work behind the verbs of the command line: one file per verb, plain functions that print tables."""
