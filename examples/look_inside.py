"""Look inside a looped model: how its state moves over the steps, and what changes when a layer's MLP is switched off.

python examples/look_inside.py runs/reverse      # any model folder or run; left out: an untrained preset
"""

import sys

import torch

import loopwright as lw

model = lw.load(sys.argv[1]) if len(sys.argv) > 1 else lw.build("huginn-tiny")
ids = torch.randint(0, min(10, model.config.vocab_size), (2, 8), generator=torch.Generator().manual_seed(0))

seen = lw.trace(model, ids, depth=12)
print(seen)
with torch.no_grad():
    out = model(ids, depth=12, output_steps=True)
for step, (before, after) in enumerate(zip(out.states, out.states[1:], strict=False), start=1):
    print(f"step {step:2}: the state moved by {float((after - before).norm() / before.norm()):.4f} of its size")

quiet = lw.zero("mlp", lw.at(stack="core", layer=0))
with torch.no_grad():
    changed = model(ids, depth=12, tap=quiet).logits
same = (changed.argmax(-1) == out.logits.argmax(-1)).float().mean()
print(f"without the MLP of the core's first layer {float(same):.0%} of the predictions stay as they were")
