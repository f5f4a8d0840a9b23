"""Two workers on two cores: each test process gets one thread, or they fight over the cores."""

import torch

torch.set_num_threads(1)
