"""Train a looped model on data of your own: here, rows of digits followed by the same digits in reverse order.

python examples/train_own_data.py            # two minutes on a CPU
python examples/train_own_data.py 20 /tmp/x  # so many updates, into this folder
"""

import random
import sys

from rich import print

import loopwright as lw

UPDATES = int(sys.argv[1]) if len(sys.argv) > 1 else 600
FOLDER = sys.argv[2] if len(sys.argv) > 2 else "runs/reverse"
EQUALS, END = 10, 11


def rows(count: int, seed: int) -> tuple[list[list[int]], list[list[int]]]:
    """Returns token ids and labels: -100 where nothing is to be predicted, else the id itself (the model shifts)."""
    draw = random.Random(seed)
    ids, labels = [], []
    for _ in range(count):
        digits = [draw.randrange(10) for _ in range(draw.randint(2, 6))]
        answer = [*reversed(digits), END]
        ids.append([*digits, EQUALS, *answer])
        labels.append([-100] * (len(digits) + 1) + answer)
    return ids, labels


data = lw.splits(
    lw.TokenRows(*rows(5_000, seed=0)),
    lw.TokenRows(*rows(200, seed=1)),
    tests={"test": lw.TokenRows(*rows(500, seed=2))},
    exact=True,  # an answer is right or wrong as a whole
    eos_id=END,
    pad_id=END,
)
model = lw.build("universal-tiny", vocab_size=12, hidden_size=64, intermediate_size=256, max_position_embeddings=32)
recipe = {
    "about": "reverse a row of digits",
    "updates": UPDATES,
    "batch": 64,
    "depth": {"kind": "uniform", "least": 1, "most": 6},
    "optim": {"kind": "adamw", "lr": 2e-3},
    "validate": {"every": 100, "depths": [1, 2, 4], "rows": 200},
}
run = lw.train(recipe, model=model, data=data, out=FOLDER)
found = lw.evaluate(run, depths=[1, 2, 4, 6])
print(found.table())
found.plot(run.folder.path / "by-depth.svg")
