"""Studies of "A Mechanistic Analysis of Looped Language Models": what holds of its claims on models that are made here.

python -m experiments.inside.random_init OUT
"""
