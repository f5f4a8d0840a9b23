"""The diffusion-forcing sampler of arXiv 2510.14961 on a small Huginn-like model: what it loses, what it saves."""
