"""Halting that is learned, beside thresholds on what a step changed, on tasks where the need of a token is known."""
