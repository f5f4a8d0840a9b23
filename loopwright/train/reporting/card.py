"""The card of a run's checkpoints: what was trained on what, and what the last validation measured at each depth."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from loopwright.convert.card import command_line, model_card, without_folders
from loopwright.model.config import LoopedConfig
from loopwright.run import RunFolder
from loopwright.settings import write_yaml
from loopwright.storage.files import read_json
from loopwright.train.recipe import Recipe
from loopwright.train.reporting.log import last_row, marked
from loopwright.train.state import Progress

_SHOWN = ("model", "data", "updates", "batch", "depth", "objective", "penalties", "average", "precision", "seed")


def run_card(config: LoopedConfig, recipe: Recipe, run: RunFolder, progress: Progress) -> str:
    """Returns the card of a checkpoint after so many updates."""
    data = without_folders(recipe.data_of())
    recipe_text = write_yaml({name: data[name] for name in _SHOWN if data[name] not in (None, [])})
    seen = f"{progress.tokens:,} tokens in {progress.rows:,} rows"
    training = f"{progress.update:,} of {recipe.updates:,} updates, {seen}.\n\n```yaml\n{recipe_text}```"
    row = last_row(run.log, "valid")
    sections = {"Training": training} | ({} if row is None else {"Results by depth": by_depth(row)}) | versions_section(run)
    return model_card(config, title=recipe.about, sections=sections)


def by_depth(row: Mapping[str, Any]) -> str:
    """Returns what a validation measured as a table: a row per depth, a column per number that was measured."""
    measured = {int(depth): scores for depth, scores in row["valid"].items()}
    names = [name for name in next(iter(measured.values())) if any(scores.get(name) is not None for scores in measured.values())]
    lines = [f"| depth | {' | '.join(names)} |", "|" + "---|" * (len(names) + 1)]
    for depth, scores in sorted(measured.items()):
        cells = ["–" if scores.get(name) is None else f"{scores[name]:.4f}" for name in names]
        lines.append(f"| {depth} | {' | '.join(cells)} |")
    return f"The validation split after {row['update'] + 1:,} updates{marked(row)}.\n\n" + "\n".join(lines)


def versions_section(run: RunFolder) -> dict[str, str]:
    """Returns the section on how the run was made, as its origin.json has it; nothing where that cannot be read."""
    try:
        origin = read_json(run.origin)
    except (OSError, ValueError):
        return {}
    if isinstance(origin.get("command"), str):
        origin["command"] = _shown_command(origin["command"])
    names = ("loopwright", "commit", "torch", "transformers", "devices", "command")
    return {"Made with": "\n".join(f"- {name}: `{_plain(origin[name])}`" for name in names if origin.get(name))}


def _shown_command(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError:  # no closing quote: an edited file
        return ""
    return command_line(words) if words else ""


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
