"""Side-by-side ratio benchmarks. `python -m benchmarks` runs those this machine can run, one JSON line per row."""
