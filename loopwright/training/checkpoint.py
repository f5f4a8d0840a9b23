"""Checkpoints: all that a run needs to go on as if it had never stopped, in safetensors and JSON only.

A checkpoint is a folder named after the number of updates done. It holds a model as `save_pretrained` writes it (so that
`lw.load` reads it) or, where its base is frozen and only the parts are asked for, those alone (so that `lw.load_adapters` puts
them on the base), tensors by group (`optimizer.safetensors`, `generators.safetensors`, `average.safetensors` …), the
progress of the run (`state.json`) and a manifest. It comes into being whole or not at all. The last one is the one of the
highest number; which one is best so far stands in `state.json`, so that no pointer can come apart from what it points to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from loopwright.checkpoints.adapters import RECORD, References, check_values, divided, find_references, read_references, write_parts
from loopwright.checkpoints.adapters import WEIGHTS as PARTS_FILE
from loopwright.checkpoints.families.family import listed
from loopwright.checkpoints.save import without_bars
from loopwright.checkpoints.source import load
from loopwright.checkpoints.weights import read_header, read_tensors, stored_tensors
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.schema import is_whole
from loopwright.storage.files import read_json, write_json
from loopwright.storage.folder import clear_leftovers, remove_folder, whole_folder
from loopwright.storage.manifest import verify
from loopwright.storage.run import STATE, saved, update_of
from loopwright.training.optimisers import spread, whole


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files are as they were written: the updates done, the best of the updates saved so far, the state."""

    folder: Path
    update: int
    best: int | None
    state: dict[str, Any]


def save_checkpoint(
    checkpoints: str | Path,
    update: int,
    *,
    model: LoopedForCausalLM,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    best: int | None = None,
    keep: int | None = None,
    weights: Mapping[str, Tensor] | None = None,
    references: References | None = None,
    beside: Callable[[Path], None] | None = None,
) -> Path:
    """Saves what was reached after `update` updates and returns its folder; then older ones beyond `keep` are removed.

    Those that any kept checkpoint names as the best stay. `tensors` go to one file a group; `state` is plain data. `weights`
    are the model's tensors (`model_tensors`), whole, where those of the model are spread over processes. Tensors that
    `references` finds in the model's base are not written. `beside` writes further files into the folder.
    """
    _check_request(update, tensors, state, keep)
    folder = Path(checkpoints)
    folder.mkdir(parents=True, exist_ok=True)
    _clear(folder)
    weights = {name: tensor if weights is None else weights[name] for name, tensor in model_tensors(model).items()}
    weights = {name: tensor for name, tensor in weights.items() if name not in (references or {})}
    needed = sum(tensor.nbytes for group in (weights, *tensors.values()) for tensor in group.values())
    target = folder / f"{update:08d}"
    with whole_folder(target, needed=needed, kept="the checkpoints that were there are unharmed") as made:
        if references is None:
            with without_bars():
                model.save_pretrained(made, state_dict=dict(weights))
        else:
            write_parts(made, model, weights, references)
        for name, group in tensors.items():
            save_file({key: value.detach().cpu().contiguous() for key, value in group.items()}, made / f"{name}.safetensors")
        write_json(made / STATE, {"update": update, "best": best, "state": state})
        if beside is not None:
            beside(made)
    if keep is not None:
        _prune(folder, update, keep)
    return target


def open_checkpoint(folder: str | Path) -> Checkpoint:
    """Returns a checkpoint, or a ValueError that says what is wrong with its files."""
    folder = Path(folder)
    problems = verify(folder)
    if problems:
        raise ValueError("; ".join(problems))
    data = read_json(folder / STATE)
    update, best, state = data.get("update", ""), data.get("best"), data.get("state")
    if set(data) != {"update", "best", "state"} or not is_whole(update, 0) or not isinstance(state, dict):
        raise ValueError(f"{folder / STATE}: not the state of a run; allowed: update, best, state")
    if best is not None and not is_whole(best, 0):
        raise ValueError(f"{folder / STATE}: best is {best!r}; allowed: the number of an update, or null")
    return Checkpoint(folder, update, best, state)


def latest_good(checkpoints: str | Path) -> tuple[Checkpoint, list[str]]:
    """Returns the newest checkpoint that is whole, and what is wrong with each newer one."""
    skipped: list[str] = []
    for folder in saved(checkpoints):
        try:
            return open_checkpoint(folder), skipped
        except (OSError, ValueError) as error:
            skipped.append(str(error))
    if skipped:
        raise ValueError(f"{checkpoints}: none of the {len(skipped)} checkpoints is whole: " + "; ".join(skipped))
    raise FileNotFoundError(f"{checkpoints}: there is no checkpoint")


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Returns the tensors of a model by name, a tied one once: under its first name, as `save_pretrained` keeps it."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            tensors[name] = tensor
            seen.add(id(tensor))
    return tensors


def load_weights(folder: str | Path, model: LoopedForCausalLM) -> None:
    """Fills a model, in place and in its own dtypes, with the weights of a checkpoint: exactly its tensors, no cast.

    Of a checkpoint of parts the others must be in the model already, value for value.
    """
    folder, weights = Path(folder), model_tensors(model)
    references = read_references(folder) if (folder / RECORD).is_file() else {}
    stored = read_header(folder / PARTS_FILE) if references else stored_tensors(folder)
    missing = [name for name in weights if name not in stored and name not in references]
    if missing:
        raise ValueError(f"{folder}: the model's tensors do not fit; missing: {listed(missing)}")
    held = {name: whole(weights[name]) for name in references if name in weights}
    check_values(str(folder), {name: (name, references[name][1]) for name in held}, held)
    with torch.no_grad():
        for name, value in read_tensors(str(folder), stored, weights).items():
            weights[name].copy_(spread(value, weights[name]))


def base_references(spec: Mapping[str, Any], model: LoopedForCausalLM) -> References:
    """Returns where the frozen tensors of a run's model stand in the model that its spec loads; the parts' own are left out."""
    if "source" not in spec:
        raise ValueError(
            f"save: parts is true, and a model of kind {spec.get('kind')!r} has no base; allowed: one that names a source, or false"
        )
    _, rest = divided(dict(model.named_parameters()), model.config)
    frozen = {name: tensor for name, tensor in rest.items() if not tensor.requires_grad}
    references = find_references(frozen, load(spec["source"], dtype=spec.get("dtype", "float32")))
    if not references:
        raise ValueError("save: parts is true, and nothing of the model's base is frozen; allowed: false, or optim: train")
    return references


# what the above share


def _check_request(update: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any], keep: int | None) -> None:
    if not is_whole(update, 0):
        raise ValueError(f"checkpoint: update is {update!r}; allowed: the number of updates done")
    if keep is not None and keep < 1:
        raise ValueError(f"checkpoint: keep is {keep}; allowed: at least 1, or None for all")
    wrong = [name for name in tensors if not re.fullmatch("[a-z][a-z_]*", name) or name.startswith("model")]
    if wrong:
        raise ValueError(f"checkpoint: {wrong[0]!r} names no group of tensors; allowed: lower-case words other than model")
    try:
        same = json.loads(json.dumps(state, allow_nan=False)) == state
    except (TypeError, ValueError) as error:
        raise ValueError(f"checkpoint: the state is not plain data ({error})") from None
    if not same:  # what comes back as something else (tuples, numbers as keys) would not resume as it was
        raise ValueError("checkpoint: the state does not come back from JSON as it was; allowed: lists, and text as keys")


def _clear(folder: Path) -> None:
    clear_leftovers(folder)
    for path in saved(folder):
        if path.suffix and path.with_suffix("").exists():  # replaced, and the save killed before it could go
            remove_folder(path)


def _prune(folder: Path, update: int, keep: int) -> None:
    # newer ones belong to a run that was further: what resumes from an older one writes them again
    mine = [path for path in saved(folder) if update_of(path) <= update]
    kept = sorted({update_of(path) for path in mine})[-keep:]
    bests = [_best_of(path) for path in mine if update_of(path) in kept]
    for path in reversed(mine):
        if update_of(path) not in {*kept, *bests}:
            remove_folder(path)


def _best_of(folder: Path) -> int | None:
    try:
        return read_json(folder / STATE).get("best")
    except (OSError, ValueError):  # damaged: it names none
        return None
