"""Longer numbers with more depth: `run.py` trains and measures seeds of `addition-longer`, with the penalty and without, and draws.

docs/longer.md says what it shows.
"""
