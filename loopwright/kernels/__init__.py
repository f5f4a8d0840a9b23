"""Fused forms of a decode pass: few and large kernels in the place of some thirty small ones per block."""
