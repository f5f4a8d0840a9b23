"""How near fused kernels bring decoding to the bandwidth bound: a sketch of an Ouro-shaped stack, five kernels a layer run."""
