"""Verbs that train: recipes, train, demo."""
