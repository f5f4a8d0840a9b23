"""Foreign checkpoints in and out: families as two-way tables, loading, saving, export."""
