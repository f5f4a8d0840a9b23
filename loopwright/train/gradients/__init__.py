"""How the gradient of the loop is had: recomputed, implicit, from CUDA graphs."""
