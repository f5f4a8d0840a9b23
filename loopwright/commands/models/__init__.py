"""Verbs about a model itself: list, inspect, check, retrofit, push."""
