"""GRPO on a small looped model: what a reward at the end of the loop, or at every step, adds to supervised training."""
