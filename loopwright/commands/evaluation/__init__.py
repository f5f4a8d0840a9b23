"""Verbs that measure a model: evaluate, compare, analyze."""
