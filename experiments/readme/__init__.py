"""The result numbers of study pages, recomputed from the committed rows.

python -m experiments.readme
"""
