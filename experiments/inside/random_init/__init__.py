"""What random initialisation already decides of the claims: random models with three kinds of norms, with injection and without."""
