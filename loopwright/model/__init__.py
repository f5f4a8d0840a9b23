"""The looped model: one loop, five parts, a cache by (step, layer). `loopwright.announce` tells transformers' Auto classes."""
