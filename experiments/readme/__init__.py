"""The result numbers of the README and of the study pages, recomputed from the committed rows.

python -m experiments.readme
"""
