"""Attacks: kills, corruption and fuzzed input. Marked `attack`; each prints how many cases it tried and how many failed."""
