"""Every preset as an ONNX program in onnxruntime = the model, with and without a mask, at the sizes it was made with and at others.

Needs onnx, onnxscript and onnxruntime: `pip install onnx onnxscript onnxruntime`, then `pytest -m ecosystem`.
"""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim

from tests.cases import TINY_CASES, gap, noisy

pytestmark = pytest.mark.ecosystem


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sizes", ["as recorded", "others"])
@pytest.mark.parametrize("name", TINY_CASES)
@torch.no_grad()
def test_a_preset_in_onnxruntime(name, sizes, masked, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = noisy(name, depth=2)  # fresh: no pass has run through it
    given = {"input_ids": torch.randint(0, 15, (2, 7))}
    if masked:
        given["attention_mask"] = torch.ones_like(given["input_ids"])
    batch, length = Dim("batch", max=64), Dim("length", max=120)
    shapes = {word: {0: batch, 1: length} for word in given} if sizes == "others" else None
    torch.onnx.export(model, (), kwargs=given, dynamo=True, dynamic_shapes=shapes, verbose=False).save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for size in [(2, 7), (3, 12), (5, 4)] if sizes == "others" else [(2, 7)]:
        row = {"input_ids": torch.randint(0, 15, size)}
        if masked:
            row["attention_mask"] = torch.ones(size, dtype=torch.long)
            row["attention_mask"][0, :2], row["attention_mask"][-1, -1:] = 0, 0
        found = torch.from_numpy(session.run(None, {word: x.numpy() for word, x in row.items()})[0])
        expected = model(**row, use_cache=False).logits
        assert gap(found, expected) < 2e-5 * max(1.0, expected.abs().max().item())
