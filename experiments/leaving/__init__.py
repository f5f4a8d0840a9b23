"""Rules that leave the loop early, read on held-out text at equal mean depth."""
