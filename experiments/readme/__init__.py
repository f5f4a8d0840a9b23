"""The README's result numbers, recomputed from the committed rows.

python -m experiments.readme
"""
