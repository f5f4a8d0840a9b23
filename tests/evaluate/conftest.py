"""One thread per test process: tiny matrices on shared cores spend their time waiting for each other otherwise."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
