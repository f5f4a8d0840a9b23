"""What `loopwright inspect` prints: parameters, FLOPs and bytes of a model as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table

from loopwright.checkpoints.source import Source
from loopwright.cli.console import table
from loopwright.model import cost
from loopwright.model.presets import PRESETS
from loopwright.recipes import names


def refuse_recipe(source: Source) -> None:
    """Raises a ValueError where a recipe stands in the place of a model, unless a preset or a folder has its name."""
    shipped = source.name in names() and not source.path.exists() and source.name not in PRESETS
    if shipped or (source.path.suffix in (".yaml", ".yml") and source.path.is_file()):
        raise ValueError(f"model: {source.name!r} is a recipe; give a model's folder, a hub id or a preset's name")


def parameter_table(facts: Mapping[str, Any]) -> Table:
    """Returns the parameters of each part, unique and trainable."""
    made = table("parameters", "part", "unique", "trainable")
    for part, count in facts["parameters"].items():
        if count["unique"] or part == "head":
            name = "head (tied to the embedding)" if part == "head" and not count["unique"] else part
            style = "bold" if part == "total" else None
            made.add_row(name, f"{count['unique']:,}", f"{count['trainable']:,}", style=style)
    return made


def flop_table(facts: Mapping[str, Any]) -> Table:
    """Returns the forward FLOPs of a token and of a pass, and those of a training pass."""
    flops = facts["flops"]
    title = f"forward FLOPs at depth {facts['depth']} (matrix products; attention in full)"
    made = table(title, "part", f"one token at context {facts['context']:,}", f"pass of {facts['batch']} × {facts['context']:,}")
    for part, value in flops["token"].items():
        if value:
            made.add_row(part, f"{value:,}", f"{flops['pass'][part]:,}", style="bold" if part == "total" else None)
    made.add_row("training pass (3 × forward)", "", f"{flops['training_pass']:,}")
    return made


def byte_table(facts: Mapping[str, Any]) -> Table:
    """Returns the bytes of weights, cache and activations."""
    sizes = facts["bytes"]
    room = f"{facts['batch']} × {facts['context']:,} tokens"
    made = table(f"bytes in {facts['dtype']}, cache policy {facts['policy']}", "what", "bytes", "")
    cache, token, alive = sizes["cache"], sizes["cache_per_token"], sizes["activations_inference"]
    rows = [("weights", sizes["weights"])]
    rows += [("KV cache per token", token["keys and values"]), (f"KV cache, {room}", cache["keys and values"])]
    if cache["running sums"]:
        rows += [("running sums per token (float32)", token["running sums"]), (f"running sums, {room}", cache["running sums"])]
    rows += [(f"activations, forward pass of {room} (estimate)", alive["peak"])]
    rows += [("  of which without its logits", alive["blocks"])] if alive["blocks"] < alive["peak"] else []
    rows += [(f"activations, training pass of {room}, all steps kept", sizes["activations_training"])]
    for name, value in rows:
        made.add_row(name, f"{value:,}", readable(value))
    return made


def readable(size: int) -> str:
    """Returns a number of bytes in the largest unit below it."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def tensor_table(rows: Iterable[cost.TensorRow], dtype: str) -> Table:
    """Returns the state dict."""
    made = table("state dict", "name", "shape", "dtype", "parameters")
    for row in rows:
        note = f" = {row.tied_to}" if row.tied_to else "" if row.trainable else " (frozen)"
        made.add_row(row.name + note, " × ".join(map(str, row.shape)), dtype, f"{row.parameters:,}")
    return made
