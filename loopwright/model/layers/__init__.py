"""The layers of a stack: norms, attention and the block around them."""
