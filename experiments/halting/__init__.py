"""Halting that is learned, beside thresholds on what a step changed, where the need of a token is known, and on text."""
