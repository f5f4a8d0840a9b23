"""What a model costs: parameters, FLOPs and bytes from its config, and whether they fit into the memory that is free."""
