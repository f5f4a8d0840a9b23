"""The engine: requests at their own depth, batched step by step, with sampling as a pure function."""
