"""A dense text model trained with graphs, as the failed control was."""
import sys
import tempfile
import traceback
from pathlib import Path

from tests.train.gradients.test_graphs import SHAPE, text_losses

shape = {
    **SHAPE, "hidden_size": 256, "intermediate_size": 640, "num_attention_heads": 4, "prelude_layers": 12, "core_layers": 0,
    "coda_layers": 0, "depth": 1, "norm_placement": ["input"], "max_position_embeddings": 1024,
}
if len(sys.argv) > 2:
    shape |= {"prelude_layers": 2, "core_layers": 4, "coda_layers": 2, "depth": 4}
for graph in (True, False):
    try:
        print(sys.argv[1:], graph, text_losses(Path(tempfile.mkdtemp()), shape, compile=sys.argv[1] == "true", graph=graph)[-3:], flush=True)
    except Exception:
        print(sys.argv[1:], graph, "FAILED", flush=True)
        traceback.print_exc()
