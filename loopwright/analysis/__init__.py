"""What a run or a model looks like from inside: figures and reports."""
