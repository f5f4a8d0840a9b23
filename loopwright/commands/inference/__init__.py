"""Verbs that run a model: generate, chat, serve, explore, bench."""
