"""A source: one way to open a model, wherever it stands.

A preset, a model folder, a run, a run of parts alone, a checkpoint inside a run or a hub id becomes a config, a recipe, weights
and a tokenizer, each read once and checked against the manifest beside it. A run is opened at its newest checkpoint that is
whole, and with its averaged weights where it averages them. No remote code is ever run.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from loopwright.checkpoints.adapters import RECORD
from loopwright.checkpoints.checked import (
    MODEL_FILES,
    TOKENIZER_FILES,
    TOKENIZERS,
    CheckedFolder,
    check_tokenizer,
    has_tokenizer,
    manifest_of_checkpoint,
)
from loopwright.checkpoints.load import named_dtype, usable_device
from loopwright.data.batch import Splits
from loopwright.data.build import check_vocab
from loopwright.data.tokenizer import NoTokenizer, load_tokenizer
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.model.parts.state import STATES
from loopwright.model.presets import PRESETS, preset
from loopwright.registry import missing_files
from loopwright.schema import read_yaml, suggest
from loopwright.storage.files import read_json
from loopwright.storage.folder import settled
from loopwright.storage.manifest import MANIFEST, Damaged
from loopwright.storage.run import ANEW, MADE, STATE, RunFolder, saved, update_of
from loopwright.untrusted import first_line, read_text, user_path

WEIGHTS = ("averaged", "raw")
_HUB_ID = r"[A-Za-z0-9][\w.-]*/[\w.-]+"


def load(
    source: str | Path,
    dtype: str | torch.dtype = "float32",
    *,
    device: str | torch.device = "cpu",
    weights: str = "averaged",
) -> LoopedForCausalLM:
    """Returns the model of a folder, a run, a checkpoint or a hub id, in eval mode: looped, or dense (no core).

    `dtype` may be "auto": the file's own. If a run averages its weights, the average is read; `weights="raw"` reads those of the
    last update. Files are checked against their manifest. A damaged newer checkpoint is skipped with a warning.
    """
    opened = Source(source)
    model = opened.model(dtype, device, weights=weights)
    for note in opened.notes:
        warnings.warn(note, stacklevel=2)
    return model


def tokenizer(source: str | Path) -> Any:
    """Returns the tokenizer of anything that `load` opens, as transformers' own class; for a run, the one it was trained with."""
    return Source(source).tokenizer()


def check_fit(splits: Splits, model: LoopedForCausalLM, name: str, words: Callable[[], str | Path]) -> None:
    """Raises a ValueError where ids of the data are beyond a model's vocabulary, or other words in its tokenizer.

    `words` returns where the tokenizer stands. Where the model or the data has none, the vocabulary's size alone is compared. Added
    tokens (EOS, the roles of a chat) may have other names: models that share a vocabulary rename them.
    """
    check_vocab(splits, model.config.vocab_size)
    if splits.tokenizer is None:
        return
    try:
        tokenizer = load_tokenizer(words(), name)
    except (FileNotFoundError, NoTokenizer):
        return
    named = {index: token for token, index in tokenizer.get_vocab().items()}
    added = set(tokenizer.added_tokens_decoder) & set(splits.tokenizer.added_tokens_decoder)
    for token, index in splits.tokenizer.get_vocab().items():
        if index not in added and named.get(index, token) != token:
            raise ValueError(
                f"data: its tokenizer is not that of {name} (token {index} is {token!r} in the data, {named[index]!r} there), "
                "so a loss would say nothing; give data with the model's own tokenizer, or a text (--text, text=)"
            )


class Source:
    """A model and what belongs to it. Nothing but names is looked at until it is asked for.

    `checkpoint` is, of a run: last (the newest that is whole), best, or the number of an update.
    """

    def __init__(self, name: str | Path, *, checkpoint: str = "last") -> None:
        if checkpoint not in ("last", "best") and not checkpoint.isdecimal():
            raise ValueError(f"checkpoint: {checkpoint!r}; allowed: last, best, or the number of an update")
        self.name, self.given, self.checkpoint = str(name), name, checkpoint
        self.run: RunFolder | None = None
        self._damage: list[str] = []  # of this run's newer checkpoints
        self._base_notes: list[str] = []
        self._opened: CheckedFolder | None = None
        self.path = settled(user_path(name))
        if _is_run(self.path):
            self.run = RunFolder(self.path)
        elif update_of(self.path) >= 0 and self.path.parent.name == "checkpoints":
            self.run = RunFolder(self.path.parent.parent)
        if self.run is None and checkpoint != "last":
            raise ValueError(f"checkpoint: {checkpoint} is asked for, and {name} is no run (it has no checkpoints)")

    # what it is

    @property
    def is_preset(self) -> bool:
        """Whether it names a preset: a folder of that name wins, and a word that can be nothing else must be one."""
        if self.path.exists():
            return False
        if self.name.removesuffix("-tiny") in PRESETS:
            return True
        if _is_word(self.name):
            known = suggest(self.name, PRESETS, "-tiny")
            raise ValueError(f"model: {self.name!r} is neither a folder nor a preset; {known} (each also as NAME-tiny)")
        return False

    def need_weights(self, verb: str) -> None:
        """Raises a ValueError where it can name no weights: a preset, or a word that is no folder."""
        if _is_word(self.name) and not self.path.exists():
            known = self.name.removesuffix("-tiny") in PRESETS
            wrong = "is a preset, which has no trained weights" if known else "is no folder"
            raise ValueError(f"{verb}: {self.name!r} {wrong}; allowed: the folder of a model or a run, or a hub id (owner/name)")

    @property
    def config(self) -> LoopedConfig:
        """The config of the model."""
        return preset(self.name) if self.is_preset else self._open().config

    @cached_property
    def recipe(self) -> dict[str, Any] | None:
        """The recipe of the run, as plain data; None where there is no run or it has none."""
        if self.run is None or not self.run.recipe.is_file():
            return None
        try:
            text = read_text(self.run.recipe)
        except OSError as error:
            raise ValueError(f"recipe: {self.run.recipe} cannot be read ({error.strerror})") from None
        data = read_yaml(text, str(self.run.recipe))
        if not isinstance(data, dict) or not all(isinstance(data.get(name, {}), dict) for name in ("model", "data")):
            raise ValueError(f"{self.run.recipe}: is no recipe of a run; put it back as the run wrote it")
        return data

    @property
    def folder(self) -> Path:
        """The folder that the config and the weights are read from."""
        return self._open().folder

    @property
    def has_manifest(self) -> bool:
        """Whether there is a manifest that the files are checked against."""
        return self._open().manifest is not None

    @property
    def has_average(self) -> bool:
        """Whether averaged weights stand beside those of the last update."""
        return self._open().has_average

    @property
    def damage(self) -> list[str]:
        """What is wrong with each newer checkpoint that was passed over, and what was taken instead."""
        return [f"{damage}; {self.folder} is used instead" for damage in self._damage]

    @property
    def notes(self) -> list[str]:
        """What a reader should know: the damage, and that a training had one start for all rows."""
        return [*self.damage, *(f"{self.folder}: {told}" for told in self.one_start), *self._base_notes]

    @property
    def one_start(self) -> list[str]:
        """What an older version trained, or began: it drew the start once, for all rows, and did not write down how."""
        opened = self._open()
        if not STATES[opened.config.state["kind"]].seeded or not (opened.folder / STATE).is_file():
            return []
        start = ""
        with suppress(OSError, ValueError):  # what is not there or cannot be read says nothing
            start = str(read_json(opened.folder / MADE).get("start", ""))
        until = start.removeprefix(ANEW).replace(" from", ", until")
        return [] if start == ANEW else [
            f"trained by a version that began every row at the same noise{until}; it may answer well from that start alone "
            "(evaluate --state-seeds 4 measures it), and a new training mends it"
        ]  # fmt: skip

    # what it holds

    def model(
        self, dtype: str | torch.dtype = "float32", device: str | torch.device = "cpu", *, weights: str = "averaged"
    ) -> LoopedForCausalLM:
        """Returns the model, in eval mode: averaged where the run averages, or the "raw" weights of the last update."""
        kind, place = named_dtype(dtype), usable_device(device)
        if weights not in WEIGHTS:
            raise ValueError(f"weights: {weights!r}; {suggest(str(weights), WEIGHTS)}")
        while True:
            opened = self._open()
            base = None if opened.files is not None else self._base(opened.folder, place)
            try:
                return opened.model(kind, place, averaged=weights == "averaged", base=base)
            except Damaged as error:
                self._pass_over(error)

    def parts_on(self, base: LoopedForCausalLM, dtype: torch.dtype | None = None) -> LoopedForCausalLM:
        """Returns a base with the parts that were saved alone on it."""
        while True:
            # first: a folder without them is no parts, whatever else is wrong with it
            if not (self.path / RECORD).is_file() and (self.run is None or self._open().files is not None):
                raise FileNotFoundError(f"{self.path}: there is no {RECORD}; a folder that was saved holds one")
            opened = self._open()
            try:
                return opened.model(dtype, base.device, averaged=True, base=base)
            except Damaged as error:
                self._pass_over(error)

    def tokenizer(self) -> Any:
        """Returns the tokenizer: transformers' own class for it."""
        return load_tokenizer(self.tokenizer_folder(), self.name)

    def tokenizer_folder(self) -> Path:
        """Returns where the tokenizer stands, its files checked: of a run in the checkpoint, else where its recipe says."""
        if self.path.exists():
            places = [self.path] if self.run is None else [self.folder, self.run.path]
        else:
            places = [_download(_hub_id(self.given, bare=True), TOKENIZER_FILES)]
        try:
            for place in places:
                if has_tokenizer(place):
                    check_tokenizer(place)
                    return place
        except Damaged as error:
            raise Damaged(f"{error}; {_as_it_is(place)}") from None
        trained_on = ((self.recipe or {}).get("data") or {}).get("tokenizer")
        if trained_on is None:
            raise FileNotFoundError(f"{self.name}: there is no tokenizer ({', '.join(TOKENIZERS[:-1])} or {TOKENIZERS[-1]})")
        return Source(trained_on).tokenizer_folder()

    # how it is found

    def _open(self) -> CheckedFolder:
        while self._opened is None:
            try:
                self._opened = CheckedFolder.of(self._candidates[0], in_run=self.run is not None)
            except Damaged as error:
                self._pass_over(error)
            except ValueError as error:
                raise ValueError(f"{error}{missing_files((self.recipe or {}).get('imported'))}") from None
        return self._opened

    @cached_property
    def _candidates(self) -> list[Path]:
        """The folders that may hold the model, the first one first; more than one for a run that is asked for its last."""
        if self.run is None or self.path != self.run.path:
            return [self._one_folder()]
        folders = saved(self.run.checkpoints)
        if not folders:
            raise FileNotFoundError(f"{self.run.checkpoints}: there is no checkpoint")
        if self.checkpoint == "last":
            return folders
        wanted = self._best(folders) if self.checkpoint == "best" else int(self.checkpoint)
        matching = [folder for folder in folders if update_of(folder) == wanted]
        if not matching:
            raise FileNotFoundError(f"{self.run.checkpoints}: there is no checkpoint of update {wanted}")
        return matching[:1]

    def _one_folder(self) -> Path:
        if self.path.is_dir():
            return self.path
        if self.path.exists():
            raise ValueError(f"{self.name}: is a file; allowed: a model folder or a hub id (owner/name)")
        if _is_word(self.name) and self.name.removesuffix("-tiny") in PRESETS:
            raise ValueError(f"{self.name}: is a preset, which has no trained weights (lw.build makes one with fresh ones)")
        return _download(_hub_id(self.given), MODEL_FILES)

    def _best(self, folders: Sequence[Path]) -> int:
        """The update that the newest checkpoint whose state is whole calls the best."""
        for folder in folders:
            try:
                manifest_of_checkpoint(folder).check(STATE)
                best = read_json(folder / STATE).get("best")
            except (Damaged, OSError, ValueError) as error:
                self._damage.append(str(error))
                continue
            if best is None:
                raise ValueError(f"{folder.parent}: no validation has chosen a best checkpoint; allowed: last")
            return best
        raise ValueError(f"{folders[0].parent}: none of the {len(folders)} checkpoints is whole: {'; '.join(self._damage)}")

    def _pass_over(self, error: Damaged) -> None:
        """Goes on to the next older checkpoint of a run; what was named, or is the only one there, is an error."""
        self._opened = None
        if self.run is None:
            raise Damaged(f"{error}; {_as_it_is(self._candidates[0])}") from None
        if self.path != self.run.path or self.checkpoint != "last":
            raise Damaged(f"{error}; the checkpoint is damaged: take another one of {self.run.checkpoints}") from None
        self._damage.append(str(error))
        del self._candidates[0]
        if not self._candidates:
            count = f"none of the {len(self._damage)} checkpoints is whole"
            raise Damaged(f"{self.run.checkpoints}: {count}: {'; '.join(self._damage)}") from None

    def _base(self, folder: Path, device: torch.device) -> LoopedForCausalLM:
        """The model that parts were trained on, by the recipe; in the dtype of the training: its values are compared."""
        spec = (self.recipe or {}).get("model") or {}
        if self.run is None:
            raise FileNotFoundError(f"{folder}: holds adapters only; put them on their base with load_adapters")
        if "source" not in spec:
            raise ValueError(f"{folder}: holds parts alone, and the recipe names no model they were made from")
        base = Source(spec["source"])
        model = base.model(spec.get("dtype", "float32"), device)
        self._base_notes = base.notes
        return model


def _as_it_is(folder: Path) -> str:
    """Says how to read a folder that is not as it was written. One with a state was copied out of a run: it needs its manifest."""
    names = [name for name in (MANIFEST, STATE) if os.path.lexists(folder / name)]
    return f"delete {' and '.join(names)} there to read the folder as it is"


def _is_run(path: Path) -> bool:
    inside, recipe = (path / "checkpoints").is_dir(), (path / "recipe.yaml").is_file()
    plain = (path / "config.json").exists()
    return (inside and recipe) or ((inside or recipe) and not plain)


def _is_word(name: str) -> bool:
    """Whether a source is neither a path of several parts nor a hub id."""
    return "/" not in name and "\\" not in name


def _hub_id(name: str | Path, *, bare: bool = False) -> str:
    """The hub id that a name is: owner/name, where no folder `owner` stands here (a tokenizer's may be `bare`, without owner)."""
    asked = str(name).removeprefix("hf://")
    if isinstance(name, Path) or not (re.fullmatch(_HUB_ID, asked) or (bare and re.fullmatch(r"[A-Za-z0-9][\w.-]*", asked))):
        raise FileNotFoundError(f"{name}: there is no such folder, and it is not a hub id (owner/name) either")
    owner = Path(asked).parts[0]
    if asked == name and "/" in asked and Path(owner).is_dir():
        raise FileNotFoundError(
            f"{name}: there is no such folder; {owner} is a folder here, so the hub is not asked (hf://{name} asks it)"
        )
    return asked


def _download(name: str, files: tuple[str, ...]) -> Path:
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=list(files)))
    except Exception as error:  # the hub client raises its own, requests' and the operating system's errors
        raise FileNotFoundError(
            f"{name}: there is no such folder, and the hub did not give it ({type(error).__name__}: {first_line(error)})"
        ) from error
