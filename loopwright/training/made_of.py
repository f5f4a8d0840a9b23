"""What a run is made of beside its recipe, in digests: data, tokenizer, files of parts, the models that it holds on to, versions.

A run that goes on must be made of the same, and so must all processes of one run: what differs is named and refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from loopwright.checkpoints.export import SILENT
from loopwright.checkpoints.families import OWN
from loopwright.data.batch import Splits, made_of
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.registry import file_digests
from loopwright.schema import differences
from loopwright.storage.files import read_json
from loopwright.training.checkpoint import model_tensors
from loopwright.untrusted import shown
from loopwright.version import VERSION

if TYPE_CHECKING:
    from loopwright.training.recipe import Recipe
    from loopwright.training.run import Job

ALONE = ("about", "toy", "track", "imported")  # what a recipe may say otherwise in each process: no update comes from it
# where the recipe says what a digest is of
NAMES = {
    "source": "what data.files or data.dataset hold", "tokenizer": "the tokenizer (data.tokenizer)",
    "template": "the chat template (data.template)", "rows": "its rows",
}  # fmt: skip
WORDS = 1 << 22  # numbers of a tensor that are summed at once


def as_started(recipe: Recipe, *, resume: bool, spread: str) -> dict[str, Any]:
    """Returns what all processes of a run must have been started with: the recipe, and what else their command lines and machines
    decide."""
    said = {name: value for name, value in recipe.data_of().items() if name not in ALONE}
    parts = {Path(file).name: digest for file, digest in file_digests().items()}
    versions = {"loopwright": VERSION, "torch": str(torch.__version__), "the code of loopwright": _code()}
    return {**said, "--resume": resume, "spread as": spread, "version of": versions, "the file of parts": parts}


def as_built(job: Job) -> dict[str, dict[str, str]]:
    """Returns what the objects of a run are made of, as a checkpoint notes it."""
    fixed = {name: digest_of_model(model) for name, model in job.objective.fixed_models().items()}
    return {**_of_data(job.splits), **({"fixed": fixed} if fixed else {})}


def _of_data(splits: Splits) -> dict[str, dict[str, str]]:
    return {name: made_of(source) for name, source in (("train", splits.train), ("valid", splits.valid))}


def check_same_objects(where: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises a ValueError where the objects of a run that is to go on are not made of what they were, and names what is not."""
    found = [path for path, _ in differences([before, now])]
    if not found:
        return
    # rows follow from what they are made of, where that differs
    part, _, name = next((path for path in found if not path.endswith(".rows")), found[0]).partition(".")
    told = f"the {name} of the objective" if part == "fixed" else f"{part}: {NAMES.get(name, name)}"
    raise ValueError(_changed(told, where))


def check_same_parts(where: Path, before: Mapping[str, Any]) -> None:
    """Raises a ValueError where a file that parts of the run came from is no longer what it was."""
    now = file_digests().values()
    file = next((file for file, digest in before.items() if digest not in now), None)
    if file is not None:
        raise ValueError(_changed(f"{shown(file)[1:-1]}, which parts came from,", where))


def check_same_config(where: Path, now: LoopedConfig) -> None:
    """Raises a ValueError where the model that a recipe's source gives is another than the run's."""
    saved = OWN.config(read_json(where / "config.json"), str(where / "config.json"))
    first = next(differences([_plain(saved), _plain(now)]), None)
    if first is not None:
        path, (there, here) = first
        raise ValueError(_changed(f"{path} of the model's config ({shown(there)} then, {shown(here)} now)", where))


def _changed(what: str, where: Path) -> str:
    remedy = "put it back as it was, or start a new run"
    return f"resume: {what} changed since {where} was saved, so the run would go on as another; {remedy}"


def digest_of_model(model: LoopedForCausalLM) -> str:
    """Returns a digest of what a model computes with: its config and its tensors."""
    whole = hashlib.sha256(json.dumps(_plain(model.config), sort_keys=True).encode())
    for name, tensor in model_tensors(model).items():
        whole.update(f"{name} {tensor.dtype} {list(tensor.shape)} {_checksum(tensor)}\n".encode())
    return whole.hexdigest()[:12]


def _plain(config: LoopedConfig) -> dict[str, Any]:
    """What a model computes with in training, as its file has it."""
    fields = {name: getattr(config, name) for name in LoopedConfig.__annotations__ if name == "dropout" or name not in SILENT}
    plain: dict[str, Any] = json.loads(json.dumps(fields))
    return plain


def _checksum(tensor: Tensor) -> int:
    """A sum of a tensor's bits, each number of it by its place: sha256 of a large model would take longer than loading it."""
    flat = tensor.detach().contiguous().flatten()
    words = flat.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for place in range(0, len(words), WORDS):
        part = words[place : place + WORDS].long()
        total += (part * (2 * torch.arange(place, place + len(part), device=part.device) + 1)).sum()
    return int(total)


def _code() -> str:
    """A digest of the package's own files: two checkouts may have one version."""
    return digest_of_files(Path(__file__).parents[1].rglob("*.py"))


def digest_of_files(paths: Iterable[Path]) -> str:
    """Returns a digest of the content of files, in the order of their paths."""
    whole = hashlib.sha256()
    for path in sorted(paths):
        whole.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()[:12]
