"""The cross-entropy as a kernel, beside torch's own in float64."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width"), [(1, 7), (5, 4096), (33, 9001), (0, 16)])
def test_kernel_is_the_cross_entropy(rows: int, width: int, dtype: torch.dtype) -> None:
    from loopwright.kernels.entropy import CrossEntropy

    draws = torch.Generator("cuda").manual_seed(rows + width)
    logits = (8 * torch.randn(rows, width, generator=draws, device="cuda")).to(dtype).requires_grad_()
    ids = torch.randint(0, width, (rows,), generator=draws, device="cuda")
    of_loss, of_z = (torch.randn(rows, generator=draws, device="cuda") for _ in range(2))
    exact = logits.detach().double().requires_grad_()
    z = exact.logsumexp(1)
    wanted = z - exact.gather(1, ids[:, None])[:, 0]
    (wanted @ of_loss.double() + z @ of_z.double()).backward()

    loss, log_z = CrossEntropy.apply(logits, ids)
    (loss @ of_loss + log_z @ of_z).backward()
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(log_z.double(), z, rtol=1e-5, atol=1e-5)
    assert logits.grad is not None and exact.grad is not None and logits.grad.dtype == dtype
    near = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=near, atol=near * 0.1)
