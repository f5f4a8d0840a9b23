"""A run on its devices: compiled, over several processes, how fast it is, and what more GPUs would cost on paper."""
