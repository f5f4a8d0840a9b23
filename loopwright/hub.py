"""Sharing: `lw.push` uploads a model folder, or the model of a run, to the Hugging Face hub, after its files were checked."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from loopwright.convert.save import save
from loopwright.run import STATE
from loopwright.source import Source
from loopwright.storage.manifest import CARD, Manifest
from loopwright.untrusted import first_line

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def push(folder: str | Path, repo: str, *, private: bool = False) -> str:
    """Uploads a model to the repository `owner/name` of the hub and returns its address. A missing repository is made.

    Args:
        folder: a folder of `lw.save`, of a retrofit, a run or a checkpoint. Of the last two the model goes up as `lw.load` opens it
            (averaged weights where it averages), without the optimiser.
        repo: owner/name.
        private: whether a new repository is visible to its owner alone.
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
        ready = _plain_model(source, Path(place) / "model") if trained else check_files(source)
        return _upload(ready, repo, private)


def check_files(source: Source) -> Path:
    """Returns the folder of a model after its config, the headers of its weights and every file of its manifest were read."""
    folder = source.folder
    manifest = Manifest.of(folder)
    if manifest is not None:
        for name in manifest.entries:
            manifest.check(name)
    return folder


def _plain_model(source: Source, folder: Path) -> Path:
    """The model of a run in a folder of its own, with its tokenizer and the card of the checkpoint."""
    model = source.model("auto", "cpu")
    try:
        tokenizer = source.tokenizer()
    except (OSError, ValueError):  # a task's own symbols need none
        tokenizer = None
    save(model, folder, tokenizer)
    card = source.folder / CARD
    if card.is_file():
        shutil.copyfile(card, folder / CARD)
    return folder


def _upload(folder: Path, repo: str, private: bool) -> str:
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    hub = huggingface_hub.HfApi(library_name="loopwright")
    try:
        address = hub.create_repo(repo, private=private, exist_ok=True)
        hub.upload_folder(repo_id=repo, folder_path=folder, commit_message="Upload by loopwright", ignore_patterns=[".*"])
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        why = "may this token write there?" if status in (401, 403) else first_line(error)
        raise ValueError(f"push: the hub refused {repo} (status {status}): {why}") from None
    except Exception as error:  # its transport's errors, the system's, and "offline mode is enabled"
        raise ValueError(f"push: the hub cannot be reached ({type(error).__name__}: {first_line(error)})") from None
    return str(address)
