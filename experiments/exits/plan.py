"""The models of this study: how each is trained, and what its exits are measured on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
TEXT = "corpus/test.jsonl.gz"
PASSAGES = 200


@dataclass(frozen=True)
class Model:
    """A recipe with changes, or none where another study makes the model; `text` models are measured on held-out text."""

    recipe: str | None
    changes: tuple[str, ...] = ()
    depth: int = 4
    text: bool = True
    after: str | None = None  # the model whose weights it starts from


MODELS: dict[str, Model] = {
    "addition": Model("demo-stable", depth=8, text=False),
    "text": Model(str(HERE / "text.yaml"), depth=8),
    "wide": Model(str(HERE / "wide.yaml"), depth=8),  # 90 million parameters: for a GPU
    "retrofit": Model(
        "heal-stories260k-cpu", ("updates=150", "batch=8", "schedule.warmup=20", "validate.every=150", "validate.rows=16")
    ),
    # Ouro's two stages on the same task: the loss expected over exits, then the gate alone
    "gated": Model(
        "demo-stable",
        (
            "model.changes.halting={kind: exit}", "objective={kind: expected-exit, beta: 0.05}", "depth={kind: fixed, depth: 4}",
            "penalties=[]", "updates=1200", "schedule.decay=400", "validate.every=400",
        ),
        text=False,
    ),
    "gate": Model(
        "demo-stable",
        (
            "objective={kind: exit-gate}", "depth={kind: fixed, depth: 4}", "penalties=[]", "updates=200", "schedule.warmup=20",
            "schedule.decay=50", "validate.every=200",
            "optim={kind: adamw, lr: 1e-2, weight_decay: 0.0, parts: {'*': {freeze: true}, 'halting.*': {freeze: false}}}",
        ),
        text=False,
        after="gated",
    ),
    # of `experiments.sft`: SmolLM2 looped and healed, then chats at random depth; put its folder random-0 here as "chats"
    "chats": Model(None, depth=8),
}  # fmt: skip


def overrides(name: str, data: Path, runs: Path) -> list[str]:
    """Returns the changes to a model's recipe, the paths of its data included."""
    model = MODELS[name]
    words = list(model.changes)
    if model.text:
        tokenizer = data / "models" / "stories260K"
        files = {"files": "corpus/train-00.jsonl.gz", "valid_files": "corpus/valid.jsonl.gz"}
        words += [f"data.{field}={data / path}" for field, path in files.items()] + [f"data.tokenizer={tokenizer}"]
    if name == "retrofit":
        words += [f"model.source={data / 'models' / 'stories260K'}", f"objective.teacher={data / 'models' / 'stories260K'}"]
    if model.after is not None:
        words.append(f"model={{kind: load, source: {runs / model.after}}}")
    return words
