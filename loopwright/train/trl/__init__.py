"""Reinforcement learning through TRL (extra `rl`). Nothing here is imported before a recipe's objective asks for it."""
