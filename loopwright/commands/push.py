"""`loopwright push`: a model to the Hugging Face hub."""

from __future__ import annotations

from loopwright.checkpoints.hub import push as upload
from loopwright.commands.console import console, told_warnings


def push(folder: str, repo: str, *, private: bool = False) -> dict[str, str]:
    """Uploads the model of a folder, a run or a checkpoint, prints where it is, and returns that."""
    with told_warnings():
        address = upload(folder, repo, private=private)
    console().print(f"pushed: {address}", markup=False, soft_wrap=True)
    return {"folder": folder, "repo": repo, "address": address}
