"""Keys and values that are kept: the cache of one batch, and the pool of many sequences."""
