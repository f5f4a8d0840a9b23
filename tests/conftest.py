"""What holds for every test process.

One thread each: two workers on two cores would fight over them. No oneDNN: on ARM it takes forty times as long as BLAS for
the small products of tiny models (0.6 ms for 28 × 32 × 32), and the suite is made of them.
"""

import torch

torch.set_num_threads(1)
torch.backends.mkldnn.enabled = False
