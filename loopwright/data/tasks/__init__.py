"""Tasks whose rows are made by rule."""
