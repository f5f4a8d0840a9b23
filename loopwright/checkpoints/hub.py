"""Sharing: `lw.push` uploads a model folder, or the model of a run, to the Hugging Face hub, after its files were checked."""

from __future__ import annotations

import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from loopwright.checkpoints.adapters import RECORD
from loopwright.checkpoints.checked import TOKENIZER_FILES
from loopwright.checkpoints.save import save
from loopwright.checkpoints.source import Source
from loopwright.storage.manifest import CARD, MANIFEST, Manifest, files_of
from loopwright.storage.run import STATE
from loopwright.untrusted import first_line

# what a saved model consists of: of a folder without a manifest nothing else goes up, since nothing says what else belongs to it
_MODEL = (
    "config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json", *TOKENIZER_FILES, "spiece.model",
    "sentencepiece.bpe.model", RECORD, CARD,
)  # fmt: skip
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def push(folder: str | Path, repo: str, *, private: bool = False) -> str:
    """Uploads a model to the repository `owner/name` of the hub and returns its address. A missing repository is made.

    Args:
        folder: a folder of `lw.save`, of a retrofit, a run or a checkpoint. Of the last two the model goes up as `lw.load` opens it
            (averaged weights where it averages), without the optimiser. Files that are not part of the model stay here.
        repo: owner/name.
        private: whether the repository is visible to its owner alone; one that exists and is public is refused.
    """
    import huggingface_hub

    if not isinstance(repo, str) or not _REPO.fullmatch(repo) or len(repo) > 96 or ".." in repo or "--" in repo:
        raise ValueError(f"push: repo must be owner/name in letters, digits, '.', '_' and single '-' (got {repo!r})")
    source = Source(folder)
    if not source.path.is_dir():
        raise ValueError(f"push: {str(folder)!r} is no folder; allowed: the folder of a saved model, a run or a checkpoint")
    if huggingface_hub.get_token() is None:
        raise ValueError("push: there is no token of the hub; run `hf auth login`, or set HF_TOKEN to one that may write")
    with tempfile.TemporaryDirectory() as place:
        trained = source.run is not None or (source.path / STATE).is_file()  # a checkpoint, also one outside its run
        ready = _plain_model(source, Path(place) / "model") if trained else source.folder
        return _upload(ready, check_files(ready), repo, private)


def check_files(folder: Path) -> list[str]:
    """Returns the names of a model's files, each checked against the manifest where there is one; warns of other files.

    A link is refused: what it points to was never part of the folder.
    """
    manifest, present = Manifest.of(folder), files_of(folder)
    if manifest is None:
        names = [name for name in present if any(fnmatch(name, pattern) for pattern in _MODEL) and "/" not in name]
    else:
        names = [*manifest.entries, MANIFEST, *([CARD] if CARD in present else [])]
    for name in names:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"push: {folder / MANIFEST} names {name!r}, which is outside its folder")
        if any((folder / part).is_symlink() for part in (path, *path.parents)[:-1]):
            raise ValueError(f"push: {folder / name} is a link; put the file itself there")
        if manifest is not None and name in manifest.entries:
            manifest.check(name)
    others = len(set(present) - set(names))
    if others:
        warnings.warn(f"push: files of {folder} that are not part of the model were left out: {others}", stacklevel=3)
    return names


def _plain_model(source: Source, folder: Path) -> Path:
    """The model of a run in a folder of its own, with its tokenizer and the card of the checkpoint."""
    model = source.model("auto", "cpu")
    try:
        tokenizer = source.tokenizer()
    except (OSError, ValueError):  # a task's own symbols need none
        tokenizer = None
    if source.damage:  # other verbs take an older checkpoint and say so; what is published must be the one that was meant
        raise ValueError(f"push: {source.damage[0]} only where it is named; push that folder, or remove the damaged one")
    save(model, folder, tokenizer)
    card = source.folder / CARD
    if card.is_symlink():
        raise ValueError(f"push: {card} is a link; put the file itself there")
    if card.is_file():
        shutil.copyfile(card, folder / CARD)
    for note in source.one_start:
        with (folder / CARD).open("a") as told:
            told.write(f"\n## Start\n\nThis model was {note}.\n")
    return folder


def _upload(folder: Path, names: list[str], repo: str, private: bool) -> str:
    import huggingface_hub

    hub = huggingface_hub.HfApi(library_name="loopwright")
    with _one_line(repo):
        address = hub.create_repo(repo, private=private, exist_ok=True)
        is_private = hub.repo_info(repo).private if private else None
    if private and is_private is not True:  # the hub leaves a repository that exists as visible as it is
        raise ValueError(f"push: {repo} exists and is public; make it private on the hub, name another, or leave private out")
    files = [huggingface_hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=folder / name) for name in names]
    with _one_line(repo):
        hub.create_commit(repo, files, commit_message="Upload by loopwright")
    return str(address)


@contextmanager
def _one_line(repo: str) -> Iterator[None]:
    """Turns every error of the hub and of the way there into one line."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        why = "may this token write there?" if status in (401, 403) else first_line(error)
        raise ValueError(f"push: the hub refused {repo} (status {status}): {why}") from None
    except Exception as error:  # its transport's errors, the system's, and "offline mode is enabled"
        raise ValueError(f"push: the hub cannot be reached ({type(error).__name__}: {first_line(error)})") from None
