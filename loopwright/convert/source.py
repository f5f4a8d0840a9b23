"""Where a model comes from: a folder, or a hub id that is downloaded into the usual cache. No remote code is ever run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

MODEL_FILES = ("config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json")
TOKENIZER_FILES = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "chat_template.jinja",
)  # fmt: skip


def find_folder(source: str | Path, files: tuple[str, ...] = MODEL_FILES) -> Path:
    """Returns the folder of a source: itself where it is one, else the download of the hub id's `files`."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        return _last_checkpoint(folder) or folder
    if folder.exists():
        raise ValueError(f"{source}: is a file; allowed: a model folder or a hub id (owner/name)")
    if isinstance(source, Path) or not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", source):
        raise FileNotFoundError(f"{source}: there is no such folder, and it is not a hub id (owner/name) either")
    return _download(source, files)


def _last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint of a run folder, which stands for its model."""
    if (folder / "config.json").exists() or not (folder / "checkpoints").is_dir():
        return None
    return max((path.parent for path in folder.glob("checkpoints/[0-9]*/config.json")), default=None, key=lambda path: path.name)


def tokenizer(source: str | Path) -> Any:
    """Returns the tokenizer that stands in a folder or behind a hub id: transformers' own class for it."""
    from transformers import AutoTokenizer

    folder = find_folder(source, TOKENIZER_FILES)
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")):
        raise FileNotFoundError(f"{source}: there is no tokenizer (tokenizer.json, tokenizer.model, vocab.json or vocab.txt)")
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # a damaged file raises whatever its parser raises
        raise ValueError(f"{source}: the tokenizer cannot be read ({_first_line(error)})") from error


def _download(name: str, files: tuple[str, ...]) -> Path:
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=list(files)))
    except Exception as error:  # the hub client raises its own, requests' and the operating system's errors
        raise FileNotFoundError(
            f"{name}: there is no such folder, and the hub did not give it ({type(error).__name__}: {_first_line(error)})"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
