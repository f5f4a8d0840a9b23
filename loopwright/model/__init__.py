"""The looped model: one loop, five parts, a cache by (step, layer). `loopwright.autoregister` tells transformers' Auto classes."""
