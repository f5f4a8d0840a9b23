"""The explorer's routes: what each asks for, and what it answers. One pass at the largest depth shown serves every slider."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

from loopwright.generation.exit_rules import build_exit, parse_exit
from loopwright.model.taps import Tap
from loopwright.serving.explore.edits import build_edit, read_edit
from loopwright.serving.explore.passes import (
    TokenTexts,
    exit_probabilities,
    head_maps,
    movement,
    paths,
    read_steps,
    settling,
    unrolled,
)
from loopwright.serving.models import ServedModel
from loopwright.serving.schema import Check, Refusal, text, whole
from loopwright.serving.site import SiteView, StaticSite
from loopwright.version import VERSION

MOST_CELLS = 8192  # tokens × steps of one view
MOST_MAP_NUMBERS = 2**17  # of attention in one answer: of a longer prompt the first tokens are shown
MOST_TOP = 20
# The page starts with the first of these that the tokenizer can read. The last two are for the recipes of stories and sums.
PROMPTS = (
    "Once upon a time, there was a little girl named Lily. She loved to",
    "Once upon a time there was a little girl named Lily. She had a",
    "79+87=",
)
TOP = 6  # likeliest tokens of a cell, where the request gives none

_texts: weakref.WeakKeyDictionary[ServedModel, TokenTexts] = weakref.WeakKeyDictionary()


def texts_of(model: ServedModel) -> TokenTexts:
    """Returns the texts of a model's tokens, each decoded once."""
    if model not in _texts:
        _texts[model] = TokenTexts(model.tokenizer)
    return _texts[model]


def describe(model: ServedModel, given: dict[str, Any]) -> dict[str, Any]:
    """Answers with what the page must know of a model: its stacks, its depths, and what can be watched of it."""
    config = model.engine.model.config
    return {
        **model.card(),
        "looped": config.is_looped,
        "layers": {"prelude": config.prelude_layers, "core": config.core_layers, "coda": config.coda_layers},
        "heads": config.num_attention_heads,
        "width": config.hidden_size,
        "vocabulary": config.vocab_size,
        "parameters": sum(p.numel() for p in model.engine.model.parameters()),
        "halting": model.engine.model.halting.mixes,
        "most_cells": MOST_CELLS,
        "example": model.readable(*PROMPTS) or "",
        "version": VERSION,
    }


def show_steps(model: ServedModel, given: dict[str, Any]) -> dict[str, Any]:
    """Answers with what each step says of each token of a prompt, its path, its curves and what it settles into."""
    ids, depth = _prompt(model, given), _depth(model, given)
    if len(ids) * depth > MOST_CELLS:
        raise Refusal(
            f"prompt: {len(ids):,} tokens × {depth:,} steps are more than {MOST_CELLS:,} cells; shorten it, or start with a lower "
            "--max-depth",
            param="prompt",
        )
    net = model.engine.model
    plain = unrolled(net, ids, depth)
    through, before = plain, None
    if "edit" in given:
        tap = _tap(model, given, ids, plain)
        through, before = unrolled(net, ids, depth, edit=tap), plain
    rule = build_exit(parse_exit(given["exit"]), net) if given.get("exit") and net.config.is_looped else None
    numbers = read_steps(net, ids, through, top=given.get("top", TOP), rule=rule, before=before)
    words, used = texts_of(model), {token for step in numbers["tokens"] for row in step for token in row}
    return {
        "model": model.name,
        "depth": depth,
        "prompt": ids,
        "words": {token: words(token) for token in sorted(used | set(ids))},
        **numbers,
        **movement(through),
        "exit": exit_probabilities(net, through),
        "path": paths(through) if net.config.is_looped else None,
        "settles": settling(through),
    }


def show_attention(model: ServedModel, given: dict[str, Any]) -> dict[str, Any]:
    """Answers with the maps of one head at every step. Of a long prompt the first tokens: later ones change nothing for them."""
    ids, depth = _prompt(model, given), _depth(model, given)
    net = model.engine.model
    shown = len(ids)
    while shown > 1 and depth * shown * (shown + 1) // 2 > MOST_MAP_NUMBERS:
        shown -= 1
    # a patch aligns at the end, noise fills a shape
    if shown < len(ids) and given.get("edit", {}).get("kind") in ("patch", "noise"):
        raise Refusal(f"prompt: {len(ids):,} tokens with a patch or noise; their maps fit {shown:,} at this depth", param="prompt")
    ids = ids[:shown]
    tap = _tap(model, given, ids, unrolled(net, ids, depth)) if "edit" in given else None
    stack = given.get("stack", "core" if net.config.is_looped else "prelude")
    maps = head_maps(net, ids, depth, stack=stack, layer=given.get("layer", 0), head=given.get("head", 0), edit=tap)
    words = texts_of(model)
    return {"model": model.name, "prompt": ids, "words": {token: words(token) for token in sorted(set(ids))}, **maps}


def _prompt(model: ServedModel, given: dict[str, Any]) -> list[int]:
    if "prompt" not in given:
        raise Refusal("prompt: missing", param="prompt")
    return model.check_ids("prompt", model.encode(given["prompt"]))


def _depth(model: ServedModel, given: dict[str, Any]) -> int:
    depth = given.get("depth", model.max_depth)
    model.limits.check_depth(depth, model.max_depth)
    return depth


def _tap(model: ServedModel, given: dict[str, Any], ids: list[int], plain: Any) -> Tap:
    def encode(prompt: str) -> list[int]:
        other = model.check_ids("edit.prompt", model.encode(prompt))
        if len(other) * len(plain.states) > MOST_CELLS:
            raise Refusal(f"edit.prompt: {len(other):,} tokens × {len(plain.states):,} steps; shorten it", param="edit")
        return other

    return build_edit(given["edit"], model.engine.model, ids, plain, encode)


_SHARED: dict[str, Check] = {"model": text, "prompt": text, "depth": whole(1), "edit": read_edit}
EXPLORER = StaticSite(
    Path(__file__).parent / "static",
    (
        SiteView("/explore/model", {"model": text}, describe),
        SiteView("/explore/steps", {**_SHARED, "top": whole(1, MOST_TOP), "exit": text}, show_steps),
        SiteView("/explore/attention", {**_SHARED, "stack": text, "layer": whole(0), "head": whole(0)}, show_attention),
    ),
)
