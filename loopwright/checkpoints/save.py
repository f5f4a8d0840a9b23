"""Saving: a model folder is written whole, with a card and a manifest; what else stood in its place (a tokenizer) stays.

The card is the README.md of the folder, written from what is known of the model. One that a person has edited is left alone.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import PLAIN, LoopedConfig
from loopwright.storage.folder import check_out, whole_folder
from loopwright.storage.manifest import CARD
from loopwright.storage.run import STATE, says
from loopwright.untrusted import user_path, visible
from loopwright.version import VERSION

# the last line of a card: the sha256 of what stands before it tells a card as it was written from one that was edited
_SEAL = re.compile(r"<!-- written by loopwright, sha256 ([0-9a-f]{64}) -->\n\Z")

# an absolute path: at the beginning of a word or after a separator; what stands after the colon of https:// is none
_ABSOLUTE = re.compile(r"""(?:^|(?<=[\s,;=:'"(\[{]))(?!(?<=:)//[^/])/[^,;=:'")\]}]*""")

# what `describe` says of a read-out that is not the plainest
_ANSWERS = {"hub": "answers at the step where its exit gate leaves", "expected": "answers by the mean of all steps"}

_CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
tags: [loopwright, looped-transformer]
# license: choose one; none was chosen for you
---

# {title}

{what}.

Depth is the number of steps through the core. {depth}

```python
import loopwright as lw

model = lw.load("FOLDER_OR_REPO")
tokenizer = lw.tokenizer("FOLDER_OR_REPO")  # where it has one
out = model.generate(**tokenizer("Once", return_tensors="pt"), max_new_tokens=32{argument})
```

{sections}Written by loopwright {version}.
"""


def model_card(config: LoopedConfig, *, title: str = "A looped language model", sections: Mapping[str, str] | None = None) -> str:
    """Returns the text of a card: what the model is, how to run it, and sections of markdown by their titles."""
    told = "".join(f"## {name}\n\n{text.strip()}\n\n" for name, text in (sections or {}).items())
    most = config.max_steps if config.beyond_max_steps == "refuse" else None
    limit = "It may be set per call" + (f", up to {most}." if most else ".")
    depth = f"It runs {config.depth} unless told otherwise. {limit}" if config.is_looped else "This model has no core: it is dense."
    body = visible(
        _CARD.format(
            title=title.strip(), what=describe(config, config.depth), depth=depth, sections=told, version=VERSION,
            argument=f", depth={config.depth}" if config.is_looped else "",
        )
    )  # fmt: skip
    return body + f"<!-- written by loopwright, sha256 {_digest(body)} -->\n"


def without_folders(value: Any) -> Any:
    """Returns plain data with every absolute path cut to its last component: cards are published."""
    if isinstance(value, Mapping):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(item) for item in value]
    return _ABSOLUTE.sub(lambda path: Path(path[0]).name or "/", value) if isinstance(value, str) else value


def command_line(words: Sequence[str]) -> str:
    """Returns a command as a card shows it: the name of the program, and absolute paths by their last component."""
    program = Path(words[0])
    if program.name == "__main__.py":  # python -m loopwright
        program = program.parent
    return shlex.join([program.name, *map(without_folders, words[1:])])


def put_card(folder: Path, text: str, *, before: Path) -> None:
    """Writes a card into a new folder; where the folder that it replaces has one that a person edited, that one stays."""
    old = before / CARD
    if old.is_file() and is_edited(old.read_bytes()):
        shutil.copyfile(old, folder / CARD)
    else:
        (folder / CARD).write_text(text, encoding="utf-8")


def is_edited(card: bytes) -> bool:
    """Returns whether a card is not as it was written, or was never ours."""
    text = card.decode("utf-8", "replace")
    seal = _SEAL.search(text)
    return seal is None or seal[1] != _digest(text[: seal.start()])


def describe(config: LoopedConfig, depth: int) -> str:
    """Returns what a model is at a depth, in one line: its stacks and the parts that are not the plainest."""
    words = [f"{name} {getattr(config, name)['kind']}" for name, plain in PLAIN.items() if getattr(config, name)["kind"] != plain]
    words += [_ANSWERS[config.read_out]] if config.read_out != "last" else []
    words += [f"adapter {spec['kind']}" + (f" on the {spec['stack']}" if "stack" in spec else "") for spec in config.adapters]
    words += [f"end norm {config.end_norm}"] if config.end_norm != "never" else []
    behind = {"shared": "one norm", "per-step": "norms per step", "per-layer-and-step": "norms per layer and step"}
    words += [f"{behind[config.layer_post_norm]} after each layer"] if config.layer_post_norm != "none" else []
    steps = f", up to {config.max_steps} steps" if config.max_steps and config.beyond_max_steps == "refuse" else ""
    heads = f"{config.num_attention_heads} heads"
    if config.num_key_value_heads != config.num_attention_heads:
        heads += f" ({config.num_key_value_heads} for keys)"
    shape = f"width {config.hidden_size}, {heads}, {config.vocab_size} tokens"
    return "; ".join([stacks(config, depth) + steps, shape, *words])


def stacks(config: LoopedConfig, depth: int) -> str:
    """Returns the three stacks in words, such as "2 prelude + 4 core × 32 + 2 coda layers"."""
    if not config.is_looped:
        return f"dense, {config.prelude_layers + config.coda_layers} layers"
    words = [f"{config.prelude_layers} prelude"] if config.prelude_layers else []
    words.append(f"{config.core_layers} core × {depth}")
    words += [f"{config.coda_layers} coda"] if config.coda_layers else []
    return " + ".join(words) + " layers"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


# what a saved model consists of: replaced as a whole, while other files of the folder stay
_REPLACED = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
    "adapters.json",
    "adapters.safetensors",
    "average.safetensors",
)
MODEL = "a model folder to replace"


def save(
    model: LoopedForCausalLM,
    folder: str | Path,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    about: Mapping[str, str] | None = None,
) -> Path:
    """Writes a model, and its tokenizer if given, as `save_pretrained` does, whole or not at all; returns the folder.

    Its card (README.md) says what it is; `about` adds sections, markdown by title. A card that was edited there stays.
    """
    with model_folder(folder, model.parameters()) as place, without_bars():
        model.save_pretrained(place)
        if tokenizer is not None:
            tokenizer.save_pretrained(place)
        put_card(place, model_card(model.config, sections=about), before=_place(folder))
    return Path(folder)


@contextmanager
def without_bars() -> Iterator[None]:
    """A save shows no bar of transformers' own: who saves says so."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def model_folder(folder: str | Path, tensors: Iterable[Tensor]) -> Iterator[Path]:
    """Gives an empty folder to write these tensors into, and puts it in the place of `folder` when the block ends well."""
    check_replaceable(folder)
    needed = sum(tensor.nbytes for tensor in tensors)
    with whole_folder(_place(folder), needed=needed, kept="what stood there is unharmed", carry=_stays) as place:
        yield place


def check_replaceable(folder: str | Path) -> None:
    """Raises a ValueError where something stands that a saved model must not replace."""
    target, allowed = check_out("save", folder, None, MODEL), f"allowed: a new folder, an empty one, or {MODEL}"
    parent = next(path for path in target.parents if path.exists())
    if not os.access(parent, os.W_OK):
        raise ValueError(f"save: {parent} cannot be written to; allowed: a folder in which you may make files")
    if not target.is_dir() or not any(target.iterdir()):
        return
    if (target / STATE).exists():  # its optimiser and its average belong to other weights
        raise ValueError(f"save: {target} is a checkpoint of a run; {allowed}")
    if not says(target / "config.json", "model_type"):
        raise ValueError(f"save: {target} holds files but no model (no config.json with a model_type); {allowed}")


def _place(folder: str | Path) -> Path:
    return user_path(folder).resolve()


def _stays(name: str) -> bool:
    return not any(fnmatch(name, pattern) for pattern in _REPLACED)
