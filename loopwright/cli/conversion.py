"""`loopwright retrofit`: a dense model made into a looped one, with what was kept, what can be trained, and what it equals."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from loopwright.checkpoints.save import check_replaceable, command_line, save, without_folders
from loopwright.checkpoints.source import Source
from loopwright.cli.console import console, progress, table
from loopwright.cli.opening import find_config, find_device, find_dtype, open_model
from loopwright.data.records import Files, text_field
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import MOST_LAYERS
from loopwright.process import fitting_threads
from loopwright.retrofitting.layout import Layout, find_layout
from loopwright.retrofitting.search import Candidate, loss_of, search
from loopwright.retrofitting.start import Reconstruction
from loopwright.retrofitting.surgery import Conversion, convert, freeze_base, source_layers, start_gaps
from loopwright.retrofitting.systems import RetrofitPlan, make_plan, promised
from loopwright.schema import check_whole, parse_overrides
from loopwright.untrusted import first_line

DEFAULT = "ouroboros-identity"
BY, TOKENS = "loss", 2048  # how layouts are scored, and on how much of a text, where nobody says
CONTEXT = 256  # tokens of a row of the text that layouts are scored on


def retrofit(
    source: str,
    out: str,
    words: Iterable[str] = (),
    *,
    prelude: str | None = None,
    core: str | None = None,
    coda: str | None = None,
    search_text: str | None = None,
    text: str | None = None,
    by: str | None = None,
    search_depth: int | None = None,
    tokens: int | None = None,
    seed: int = 0,
    dtype: str = "float32",
    device: str = "cpu",
    command: Sequence[str] = (),
) -> dict[str, Any]:
    """Converts the dense model of a folder or hub id, writes the looped one with its tokenizer, and returns what was printed.

    `command` is the command line that asked for it, for the card.
    """
    if Path(out).resolve() == Path(source).resolve():
        raise ValueError(f"retrofit: {out} is the source itself; allowed: another folder to write")
    words = list(words)
    system, overrides = _system(words)
    stacks = {"prelude": _count(prelude), "core": _layers(core), "coda": _count(coda)}
    changes, given = parse_overrides(overrides), {name: value for name, value in stacks.items() if value is not None}
    for name in given:
        if name in changes:
            raise ValueError(f"retrofit: --{name} and {name}= are both given; allowed: one of the two")
    plan = make_plan(system, changes | given)
    if core is not None and core.isdecimal():  # beside `--prelude 2` it reads as how many
        console().print(f"core: layer {core} alone, counted from 0 (--core lists layers, as 2-4; --prelude and --coda count them)")
    _check_used(plan, search_text, text, by, search_depth, tokens)
    kind, where, printer = find_dtype(dtype), find_device(device), console()
    opened = Source(source)
    opened.need_weights("retrofit")
    check_replaceable(out)
    find_config(opened)  # what no family has is said before the tokenizer is asked
    tokenizer = opened.tokenizer()
    candidates, weights = (
        None if file is None else read_ids(file, tokenizer, TOKENS if tokens is None else tokens) for file in (search_text, text)
    )
    with _progress("loading"):
        dense = open_model(opened, kind, where)
    with fitting_threads(dense):
        if candidates is not None:
            plan = replace(plan, layout=_searched(dense, candidates, plan, by or BY, 1 if search_depth is None else search_depth))
        with _progress("converting"):
            looped = convert(dense, plan, seed=seed, input_ids=weights)
        with _progress("comparing"):
            gaps = start_gaps(looped.model, dense, sorted({1, looped.model.config.depth}))
    _check_finite(gaps, dtype)
    printer.print(layout_table(looped.layout, len(source_layers(dense))))
    counts = _parameters(looped, dense)
    printer.print(_parameter_table(counts))
    if looped.reconstructions:
        printer.print(_reconstruction_table(looped.reconstructions))
    printer.print(describe_start(system, plan), soft_wrap=True)
    for name, by_depth in gaps.items():
        listed = ", ".join(f"{gap:.1e} at depth {depth}" for depth, gap in by_depth.items())
        printer.print(f"largest difference of logits to the {name} model: {listed}")
    with _progress("writing"):
        save(looped.model, out, tokenizer, about=card_sections(source, command, looped, gaps))
    printer.print(f"written: {out}", markup=False, soft_wrap=True)
    said = {"layout": looped.layout, "parameters": counts, "reconstructions": looped.reconstructions, "differences": gaps}
    return {"system": system, **said, "written": out}


def card_sections(source: str, command: Sequence[str], made: Conversion, gaps: Mapping[str, Mapping[int, float]]) -> dict[str, str]:
    """Returns what the card says of a retrofit: its source, its layers, and how far its logits are from the source's."""
    rows = [f"- {name}: {spelled(getattr(made.layout, name))}" for name in ("prelude", "core", "coda")]
    listed = [f"- {name} model, depth {depth}: {gap:.1e}" for name, by_depth in gaps.items() for depth, gap in by_depth.items()]
    by = f" by `{command_line(command)}`" if command else ""
    started = f"Made from the dense model `{without_folders(source)}`{by}; not trained since."
    return {
        "Retrofit": f"{started}\n\nLayers of the source, from 0:\n\n" + "\n".join(rows),
        "Largest difference of logits at the start": "\n".join(listed),
    }


def _check_used(
    plan: RetrofitPlan, search_text: str | None, text: str | None, by: str | None, depth: int | None, tokens: int | None
) -> None:
    """Refuses options that nothing would read, or that another one undoes."""
    if by is not None and search_text is None:
        raise ValueError(f"--search-by: {by!r}, and nothing is searched; allowed: with --search TEXT")
    if depth is not None and (search_text is None or by == "turn"):
        raise ValueError(f"--search-depth: {depth}, and no loss is searched; allowed: with --search TEXT, by loss")
    if depth is not None:
        check_whole("--search-depth", depth, 1, MOST_LAYERS)
    if search_text is not None and plan.start != "selected":  # what is scored is the layers as they are, and stepwise moves them
        raise ValueError(f"--search: given, and start is {plan.start!r}; allowed: with start=selected")
    if text is not None and plan.bases != "weighted":
        raise ValueError(f"--text: given, and bases are {plan.bases!r}; allowed: with bases=weighted")
    if tokens is not None and search_text is None and text is None:
        raise ValueError(f"--tokens: {tokens}, and there is no text; allowed: with --search or --text")


def _check_finite(gaps: Mapping[str, Mapping[int, float]], dtype: str) -> None:
    """Refuses to write a model whose logits, or whose source's, are not finite: nothing could be said of its start."""
    wrong = [depth for by_depth in gaps.values() for depth, gap in by_depth.items() if not math.isfinite(gap)]
    if wrong:
        raise ValueError(
            f"retrofit: the logits at depth {wrong[0]} are not finite in {dtype}, so that nothing was written; take a wider --dtype"
        )


@contextmanager
def _progress(what: str) -> Iterator[None]:
    with progress() as bar:
        bar.add_task(what, total=None)
        yield


def read_ids(text: str, tokenizer: Any, tokens: int) -> torch.Tensor:
    """Returns the first tokens of a file of text or JSON lines as rows of equal length."""
    check_whole("tokens", tokens, 2)
    ids: list[int] = []
    for record in Files(text):
        content = text_field(record, "text") or ""
        try:
            ids += tokenizer(content, add_special_tokens=False, verbose=False)["input_ids"]
        except Exception as error:  # a small vocabulary, such as a task's symbols, has no token for everything
            raise ValueError(
                f"{record[0]}: a text has no tokens in the model's tokenizer ({first_line(error)}); give a text in its vocabulary"
            ) from None
        if len(ids) >= tokens:
            break
    length = min(CONTEXT, tokens, len(ids))
    if length < 2:
        raise ValueError(f"{text}: holds {len(ids)} tokens; allowed: at least 2")
    rows = min(tokens, len(ids)) // length
    return torch.tensor(ids[: rows * length]).view(rows, length)


def _system(words: Iterable[str]) -> tuple[str, list[str]]:
    """The words of a command line: at most one name of a system, and overrides."""
    words = list(words)
    names = [word for word in words if "=" not in word]
    if len(names) > 1:
        raise ValueError(f"retrofit: {' and '.join(names)} are given as systems; allowed: one name, and changes as name=value")
    return (names or [DEFAULT])[0], [word for word in words if "=" in word]


def _count(word: str | None) -> int | list[int] | None:
    """A number means how many; anything else is a list."""
    return int(word) if word is not None and word.isdecimal() else _layers(word)


def _layers(word: str | None) -> list[int] | None:
    """The layers that a word such as 10,12-14 lists; a comma at its end may stand, and makes a list of one number."""
    if word is None:
        return None
    layers: list[int] = []
    for piece in filter(None, word.split(",")):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", piece.strip())
        if match is None:
            raise ValueError(f"layout: {word!r} is not a list of layers; allowed: such as 10 or 10-12,15")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(
                f"layout: {piece.strip()!r} in {word!r} goes down; allowed: from the first layer to the last, such as 2-4"
            )
        layers += range(first, last + 1)
    return layers


def _searched(dense: LoopedForCausalLM, ids: torch.Tensor, plan: RetrofitPlan, by: str, depth: int) -> Layout:
    """The best layout for the text, after a table of the best ones."""
    layout = find_layout(plan.layout, len(source_layers(dense)))
    with progress() as bar:
        task = bar.add_task("layouts")
        shown = partial(bar.update, task)
        tried = search(dense, ids, layout, by=by, depth=depth, progress=lambda done, total: shown(completed=done, total=total))
    full = loss_of(dense, ids) if by == "loss" else None
    console().print(search_table(tried, layout, ids.numel(), full, depth))
    return tried[0].layout


def search_table(found: Sequence[Candidate], layout: Layout, tokens: int, full: float | None, depth: int) -> Table:
    """Returns the best sixteen candidates, and the one a search began from, as a table."""
    title = f"layouts, scored on {tokens:,} tokens, untrained" + f", depth {depth}" * (depth > 1)
    title += "" if full is None else f" (the full model's loss: {full:.3f})"
    made = table(title, "prelude", "core", "coda", "turn", "loss", "perplexity")
    for place, one in enumerate(found):
        if place < 16 or one.layout.kept == layout.kept:
            cells = [spelled(stack) for stack in (one.layout.prelude, one.layout.core, one.layout.coda)]
            loss = ["", ""] if one.loss is None else [f"{one.loss:.3f}", f"{one.perplexity:.4g}"]
            made.add_row(*cells, f"{one.turn:.3f}", *loss, style="bold" if place == 0 else None)
    return made


def spelled(layers: Sequence[int]) -> str:
    """Returns layers in words: runs as 4-7, the rest one by one."""
    runs = [[layer for _, layer in run] for _, run in groupby(enumerate(layers), key=lambda pair: pair[1] - pair[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) or "none"


def layout_table(layout: Layout, layers: int) -> Table:
    """Returns which layers of the source became what."""
    made = table(f"the {layers} layers of the source", "stack", "layers", "runs")
    often = "once" if layout.depth == 1 else f"{layout.depth} times"
    for name, runs in (("prelude", "once"), ("core", often), ("coda", "once")):
        made.add_row(name, spelled(getattr(layout, name)), runs)
    made.add_row("dropped", spelled(layout.dropped(layers)), "")
    return made


def _parameters(made: Conversion, dense: LoopedForCausalLM) -> dict[str, int]:
    freeze_base(made.model)
    total, kept = (sum(p.numel() for p in model.parameters()) for model in (dense, made.model.without_adapters()))
    whole = list(made.model.parameters())
    trainable = sum(p.numel() for p in whole if p.requires_grad)
    frozen = sum(p.numel() for p in whole) - kept - trainable
    return {"source": total, "kept": kept, "parts, trainable": trainable, "parts, frozen bases": frozen}


def _parameter_table(counts: Mapping[str, int]) -> Table:
    rows = table("parameters", "what", "number", "share of the kept")
    for what, number in counts.items():
        share = {"source": "", "kept": "100 %"}.get(what, f"{100 * number / counts['kept']:.2f} %")
        rows.add_row(what, f"{number:,}", share)
    return rows


def _reconstruction_table(found: Sequence[Reconstruction]) -> Table:
    title = "what the bases leave of the weights they stand for (relative Frobenius norm, over layers and steps)"
    rows = table(title, "target", "rank", "mean left", "most left")
    for name in dict.fromkeys(one.name for one in found):
        errors = [one.error for one in found if one.name == name]
        ranks = sorted({one.rank for one in found if one.name == name})
        rows.add_row(name, spelled(ranks), f"{100 * sum(errors) / len(errors):.1f} %", f"{100 * max(errors):.1f} %")
    return rows


def describe_start(system: str, plan: RetrofitPlan) -> str:
    """Returns what a system says of itself, for the system as named alone, and of its start, as far as it holds for a plan."""
    promise = promised(system, plan)
    if promise is None:
        return f"{system}: changed in its parts, so the stated initial equality no longer applies; what was measured:"
    named = plan == make_plan(system, {})
    start = f"{system}: {promise.about};" if named else f"{system}, changed:"
    if promise.equals == "none":
        return f"{start} {'equals no plain model at the start' if named else 'what it equals is said of the system as named alone'}"
    where = "at every depth" if promise.at_depth is None else f"at depth {promise.at_depth}"
    return f"{start} {where} it starts as the {promise.equals} model"
