"""Numbers per step, layer and head, taken while a model runs."""
