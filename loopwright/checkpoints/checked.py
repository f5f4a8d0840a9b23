"""Model folders that are compared with their manifest: small files when they are opened, weights while they are read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from loopwright.checkpoints.adapters import RECORD, put_on
from loopwright.checkpoints.adapters import WEIGHTS as PARTS_FILE
from loopwright.checkpoints.families import OWN
from loopwright.checkpoints.load import ModelFiles, read_files, read_model
from loopwright.checkpoints.weights import INDEX, SINGLE, load_tensors
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.storage.files import read_json
from loopwright.storage.manifest import MANIFEST, Damaged, Manifest
from loopwright.storage.run import STATE

AVERAGE = "average.safetensors"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
TOKENIZER_FILES = (
    *TOKENIZERS, "config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt",
    "chat_template.jinja", MANIFEST,
)  # fmt: skip
MODEL_FILES = ("config.json", "generation_config.json", "model*.safetensors", INDEX, MANIFEST)
# files that decide which weights are read: one that the manifest does not name was never part of the model
_DECIDING = ("config.json", SINGLE, INDEX, RECORD, PARTS_FILE, AVERAGE)
_NAMED = re.compile(r"model-\d+-of-\d+\.safetensors|generation_config\.json")


@dataclass(frozen=True)
class CheckedFolder:
    """A folder whose small files are as they were written: its config, the headers of its tensors (None: it holds parts alone)
    and its manifest (None: nothing says what was written)."""

    folder: Path
    manifest: Manifest | None
    config: LoopedConfig
    files: ModelFiles | None

    @classmethod
    def of(cls, folder: Path, *, in_run: bool) -> CheckedFolder:
        """Returns what a folder holds; raises Damaged where a file that loading reads is not as it was written.

        A checkpoint has a manifest, also where it was copied out of its run; another folder may have none.
        """
        manifest = manifest_of_checkpoint(folder) if in_run or (folder / STATE).is_file() else Manifest.of(folder)
        if manifest is not None:
            named = {name for name in manifest.entries if name in _DECIDING or _NAMED.fullmatch(name)}
            named |= {name for name in TOKENIZER_FILES if in_run and name in manifest.entries}
            for name in sorted(named | {name for name in _DECIDING if (folder / name).exists()}):
                manifest.check_size(name) if name.endswith(".safetensors") else manifest.check(name)
        try:
            files = None if (folder / RECORD).is_file() else read_files(folder)
            where = folder / "config.json"
            config = OWN.config(read_json(where), str(where)) if files is None else files.config
        except (OSError, ValueError):
            for name in () if manifest is None else manifest.entries:  # a header that cannot be read may be damage
                if manifest is not None and name.endswith(".safetensors"):
                    manifest.check(name)
            raise
        return cls(folder, manifest, config, files)

    @property
    def has_average(self) -> bool:
        """Whether averaged weights stand beside those of the last update."""
        return (self.folder / AVERAGE).is_file()

    def model(
        self, dtype: torch.dtype | None, device: torch.device, *, averaged: bool, base: LoopedForCausalLM | None = None
    ) -> LoopedForCausalLM:
        """Returns the model, parts on their `base`; raises Damaged where a file is not what was written."""
        average = averaged and self.has_average
        weights = [PARTS_FILE] if self.files is None else self.files.weights
        with self._compared([*weights, *([AVERAGE] if average else [])]):
            if self.files is not None:
                model = read_model(self.files, dtype, device)
            else:
                assert base is not None
                model = put_on(base, self.folder, dtype)
            if average:
                _put_average(self.folder, model)
        return model

    @contextmanager
    def _compared(self, names: Sequence[str]) -> Iterator[None]:
        """Compares files with the manifest while the block reads them: hashing leaves the interpreter free."""
        if self.manifest is None:
            yield
            return
        with ThreadPoolExecutor(max_workers=4) as pool:
            checks = [pool.submit(self.manifest.check, name) for name in names]
            try:
                yield
            except Exception:
                _results(checks)  # damage is the better reason
                raise
            _results(checks)


def manifest_of_checkpoint(folder: Path) -> Manifest:
    """Returns the manifest of a checkpoint, which has one."""
    manifest = Manifest.of(folder)
    if manifest is None:
        raise Damaged(f"{folder / MANIFEST}: missing")
    return manifest


def has_tokenizer(folder: Path) -> bool:
    """Returns whether a folder holds a tokenizer, or held one by its manifest."""
    manifest = Manifest.of(folder)
    return any((folder / name).is_file() or (manifest is not None and name in manifest.entries) for name in TOKENIZERS)


def check_tokenizer(folder: Path) -> None:
    """Raises Damaged where a file of a tokenizer is not as it was written; files that were added are nobody's promise."""
    manifest = Manifest.of(folder)
    for name in () if manifest is None else TOKENIZER_FILES:
        if manifest is not None and name in manifest.entries:
            manifest.check(name)


@torch.no_grad()
def _put_average(folder: Path, model: LoopedForCausalLM) -> None:
    """Puts the averaged weights of a checkpoint, which are in float32, in the place of a model's own."""
    forms = {name: torch.empty(p.shape, dtype=torch.float32, device="meta") for name, p in model.named_parameters()}
    for name, value in load_tensors(folder, "average", forms).items():
        model.get_parameter(name).copy_(value)


def _results(checks: Sequence[Future[None]]) -> None:
    for check in checks:
        check.result()
