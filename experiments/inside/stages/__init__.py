"""Stages of inference on questions and on everyday text: looped models beside dense ones, with and without massive activations, at
the trained depth and far beyond it, and Proposition 4.2's own bound."""
