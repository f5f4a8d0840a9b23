"""Make a dense model into a looped one, heal it on a text, and see what was lost and regained.

    python examples/retrofit_and_heal.py path/to/llama text.jsonl     # six layers or more, with a tokenizer; and a text

Layers 0-1 become the prelude, the last two the coda, one in the middle is looped; only the new parts are trained.
"""

import sys

from rich import print

import loopwright as lw

source, text = sys.argv[1], sys.argv[2]
updates = int(sys.argv[3]) if len(sys.argv) > 3 else 200
out = sys.argv[4] if len(sys.argv) > 4 else "runs/healed"

dense = lw.load(source)
middle = dense.config.prelude_layers // 2  # a dense model is all prelude
looped = lw.retrofit(dense, "ouroboros-identity", prelude=2, core=[middle], coda=2)
recipe = {
    "about": "heal a retrofit",
    "data": {"kind": "text", "files": text, "valid_files": text, "tokenizer": source, "length": 64},
    "updates": updates,
    "batch": 8,
    "depth": {"kind": "uniform", "least": 1, "most": 4},
    "optim": {"kind": "adamw", "lr": 1e-3, "train": ["adapters.*", "gate.*"]},
    "validate": {"every": 50, "depths": [1, 2, 4], "rows": 16},
}
untrained = lw.evaluate(looped, text=text, tokenizer=source, depths=[1, 2, 4], context=64)
run = lw.train(recipe, model=looped, out=out)
print(untrained.table())
print(lw.evaluate(run, text=text, tokenizer=source, depths=[1, 2, 4], context=64).table())
print(lw.compare(run, dense, text=text, tokenizer=source, depths=(4, None), context=64).table())
