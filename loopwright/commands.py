"""The work behind the verbs of the command line: plain functions that print tables and return whether all went well."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column, Table
from rich.text import Text

from loopwright.convert.families import family_of
from loopwright.convert.load import load
from loopwright.convert.source import find_folder, tokenizer
from loopwright.convert.weights import read_json, stored_tensors
from loopwright.evaluate import conformance
from loopwright.generate.depths import StepGuess, next_token_by_depth
from loopwright.generate.stream import Sampling, checked_seed, encode, encode_chat, stream
from loopwright.model import cost
from loopwright.model.config import LoopedConfig
from loopwright.model.presets import PRESETS, build, preset
from loopwright.settings import merge, parse_overrides, suggest

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
SMALL = 1_000_000  # parameters
WIDE = 160  # columns where nobody looks through a window: a file or a pipe must not lose text

SOURCES = {
    "universal": "Universal Transformer (Dehghani et al. 2018)",
    "ouro-1.4b": "Ouro 1.4B (Zhu et al. 2025)",
    "ouro-2.6b": "Ouro 2.6B (Zhu et al. 2025)",
    "huginn": "Huginn 3.5B (Geiping et al. 2025)",
    "retrofit-llama-1b": "retrofitted Llama-3.2-1B (McLeish et al. 2025)",
    "retrofit-olmo2-1b": "retrofitted OLMo-2-1B (McLeish et al. 2025)",
    "retrofit-tinyllama": "retrofitted TinyLlama (McLeish et al. 2025)",
    "stars-addition": "the STARS study's addition transformer (2026)",
    "asura": "ASURA (2025)",
    "ouroboros-qwen2.5-3b": "Ouroboros V2 on Qwen2.5-3B",
    "relaxed": "Relaxed Recursive Transformer on TinyLlama shapes (Bae et al. 2024)",
}


# what a word on the command line means


def find_config(source: str, overrides: Iterable[str] = ()) -> LoopedConfig:
    """Returns the config of a preset, or of what `lw.load` takes, with `a.b=c` overrides laid over it."""
    changes = parse_overrides(overrides)
    if is_preset(source):
        return preset(source, **changes)
    folder = find_folder(source)
    where = str(folder / "config.json")
    settings = read_json(folder / "config.json")
    config = family_of(settings, stored_tensors(folder), where).config(settings, where)  # the weights stay on the disk
    return LoopedConfig(**merge(config.to_dict(), changes)) if changes else config


def is_preset(source: str) -> bool:
    """Returns whether a word names a preset: a folder of that name wins, and a word that can be nothing else must be one."""
    if Path(source).exists():
        return False
    if source.removesuffix("-tiny") in PRESETS:
        return True
    if "/" not in source and "\\" not in source:
        known = suggest(source.removesuffix("-tiny"), PRESETS)
        raise ValueError(f"model: {source!r} is neither a folder nor a preset; {known} (each also as NAME-tiny)")
    return False


def find_dtype(name: str) -> torch.dtype:
    """Returns the dtype of a name such as bf16 or float32."""
    if name not in DTYPES:
        raise ValueError(f"dtype: unknown {name!r}; {suggest(name, DTYPES)}")
    return DTYPES[name]


def find_device(name: str) -> str:
    """Returns the name of a device that is there."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device: unknown {name!r}; allowed: cpu, cuda, cuda:N, mps") from None
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(device.type) or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise ValueError(f"device: {name!r} is not there; allowed here: {', '.join(kind for kind, here in there.items() if here)}")
    return name


def _console(*, stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, highlight=False, width=None if stream.isatty() else WIDE)


# inspect


def inspect(
    source: str,
    overrides: Iterable[str] = (),
    *,
    depth: int | None = None,
    context: int | None = None,
    batch: int = 1,
    dtype: str = "bf16",
    policy: str = "every",
    tensors: bool = False,
    as_json: bool = False,
) -> None:
    """Prints what a model is and costs: parameters by part, FLOPs, bytes, and its state dict where asked."""
    found = find_config(source, overrides)
    facts = cost.survey(found, depth=depth, context=context, batch=batch, dtype=find_dtype(dtype), policy=policy)
    rows = cost.tensors(found) if tensors else []
    if as_json:
        if tensors:
            facts["tensors"] = [vars(row) for row in rows]
        print(json.dumps({"model": source, "summary": describe(found, facts["depth"]), **facts}, indent=2))
        return
    console = _console()
    console.print(f"[bold]{escape(source)}[/]: {escape(describe(found, facts['depth']))}", soft_wrap=True)
    for table in (_parameter_table(facts), _flop_table(facts), _byte_table(facts)):
        console.print(table)
    if tensors:
        console.print(_tensor_table(rows, facts["dtype"]))


def describe(config: LoopedConfig, depth: int) -> str:
    """Returns what a model is at a depth, in one line: its stacks and the parts that are not the plainest."""
    parts = {"state": "input", "injection": "none", "gate": "none", "halting": "none"}
    words = [f"{name} {getattr(config, name)['kind']}" for name, plain in parts.items() if getattr(config, name)["kind"] != plain]
    words += [f"adapter {spec['kind']}" for spec in config.adapters]
    words += [f"end norm {config.end_norm}"] if config.end_norm != "never" else []
    words += ["norms per step after each layer"] if config.layer_post_norm != "none" else []
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


def _table(title: str, *columns: str) -> Table:
    """Returns a table whose first column is text and whose others are numbers."""
    headers = [Column(name, justify="right" if place else "left", no_wrap=True) for place, name in enumerate(columns)]
    return Table(*headers, title=title, title_justify="left", title_style="bold")


def _parameter_table(facts: Mapping[str, Any]) -> Table:
    table = _table("parameters", "part", "unique", "trainable")
    for part, count in facts["parameters"].items():
        if count["unique"] or part == "head":
            name = "head (tied to the embedding)" if part == "head" and not count["unique"] else part
            style = "bold" if part == "total" else None
            table.add_row(name, f"{count['unique']:,}", f"{count['trainable']:,}", style=style)
    return table


def _flop_table(facts: Mapping[str, Any]) -> Table:
    flops = facts["flops"]
    title = f"forward FLOPs at depth {facts['depth']} (matrix products; attention in full)"
    table = _table(title, "part", f"one token at context {facts['context']:,}", f"pass of {facts['batch']} × {facts['context']:,}")
    for part, value in flops["token"].items():
        if value:
            table.add_row(part, f"{value:,}", f"{flops['pass'][part]:,}", style="bold" if part == "total" else None)
    table.add_row("training pass (3 × forward)", "", f"{flops['training_pass']:,}")
    return table


def _byte_table(facts: Mapping[str, Any]) -> Table:
    sizes = facts["bytes"]
    room = f"{facts['batch']} × {facts['context']:,} tokens"
    table = _table(f"bytes in {facts['dtype']}, cache policy {facts['policy']}", "what", "bytes", "")
    cache, token, alive = sizes["cache"], sizes["cache_per_token"], sizes["activations_inference"]
    rows = [("weights", sizes["weights"])]
    rows += [("KV cache per token", token["keys and values"]), (f"KV cache, {room}", cache["keys and values"])]
    if cache["running sums"]:
        rows += [("running sums per token (float32)", token["running sums"]), (f"running sums, {room}", cache["running sums"])]
    rows += [(f"activations, forward pass of {room} (estimate)", alive["peak"])]
    rows += [("  of which without its logits", alive["blocks"])] if alive["blocks"] < alive["peak"] else []
    rows += [(f"activations, training pass of {room}, all steps kept", sizes["activations_training"])]
    for name, value in rows:
        table.add_row(name, f"{value:,}", readable(value))
    return table


def readable(size: int) -> str:
    """Returns a number of bytes in the largest unit below it."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _tensor_table(rows: Iterable[cost.TensorRow], dtype: str) -> Table:
    table = _table("state dict", "name", "shape", "dtype", "parameters")
    for row in rows:
        note = f" = {row.tied_to}" if row.tied_to else "" if row.trainable else " (frozen)"
        table.add_row(row.name + note, " × ".join(map(str, row.shape)), dtype, f"{row.parameters:,}")
    return table


# check


def check(source: str, *, dtype: str = "float32", device: str = "cpu", seed: int = 0, full: bool = False) -> bool:
    """Prints the conformance table of a model or preset and returns whether nothing failed."""
    console = _console()
    name, where, kind = source, find_device(device), find_dtype(dtype)
    if is_preset(source):
        if not full and not source.endswith("-tiny"):
            name = f"{source}-tiny"
            console.print(f"{source} is checked in its small form, {name} (--full builds it at full size)")
        torch.manual_seed(seed)
        model = build(name).to(device=where, dtype=kind)  # type: ignore[call-arg]  # how transformers wraps `to`
    else:
        model = load(source, dtype=kind, device=where)
    with _fitting_threads(model), _progress() as bar:
        task = bar.add_task("check", total=len(conformance.CHECKS))
        report = conformance.check(model, progress=lambda one: bar.update(task, advance=1, description=one))
    console.print(report.table())
    counts = _counts(report.rows)
    console.print(f"{name}: {counts[True]} passed, {counts[False]} failed, {counts[None]} not offered")
    return report.ok


def _counts(rows: Iterable[Any]) -> dict[bool | None, int]:
    counts: dict[bool | None, int] = {True: 0, False: 0, None: 0}
    for row in rows:
        counts[row.passed] += 1
    return counts


@contextmanager
def _fitting_threads(model: torch.nn.Module) -> Iterator[None]:
    """Runs a small model on one thread for a while: waiting for the others would cost it more than they bring."""
    before = torch.get_num_threads()
    if sum(p.numel() for p in model.parameters()) < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _progress() -> Progress:
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=_console(stderr=True), transient=True, disable=not sys.stderr.isatty())


# generate


def generate(
    source: str,
    prompt: str,
    *,
    depth: int | None = None,
    max_new_tokens: int = 64,
    sampling: Sampling | None = None,
    seed: int | None = None,
    state_seed: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    chat: bool = False,
    show_depth: bool = False,
) -> None:
    """Streams what a model says after a prompt, then prints one line of statistics on stderr."""
    where, kind = find_device(device), find_dtype(dtype)
    if is_preset(source):
        raise ValueError(
            f"generate: {source!r} is a preset, which has neither trained weights nor a tokenizer; give a model's folder"
        )
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens: {max_new_tokens}; allowed: at least 0 (0 with --show-depth prints the table alone)")
    # what can be wrong is found before the weights are read
    find_config(source).check_depth(depth)
    if seed is not None and not (sampling or Sampling()).options()["do_sample"]:
        raise ValueError(f"seed: {seed} would change nothing; nothing is drawn without a temperature, top_p, top_k or min_p")
    words = tokenizer(source)
    model = load(source, dtype=kind, device=where)
    if state_seed is not None:
        checked_seed(model, state_seed)
    ids = (encode_chat if chat else encode)(words, prompt, model.config.vocab_size).to(model.device)
    with _fitting_threads(model):
        if show_depth:
            guesses = next_token_by_depth(model, ids, depth, state_seed=state_seed)
            _console().print(_guess_table(guesses, words))
        if max_new_tokens:
            statistics = stream(
                model, words, ids,
                write=_write, max_new_tokens=max_new_tokens, depth=depth, sampling=sampling, seed=seed, state_seed=state_seed,
            )  # fmt: skip
            print(flush=True)
            print(f"[{statistics}]", file=sys.stderr)


def _write(text: str) -> None:
    print(text, end="", flush=True)


def _guess_table(guesses: list[StepGuess], words: Any) -> Table:
    table = Table(title="the next token, as each step would have said it", title_justify="left", title_style="bold")
    table.add_column("step", justify="right")
    for place in ("1st", "2nd", "3rd")[: len(guesses[0].tokens)]:
        table.add_column(place, no_wrap=True)
    table.add_column("entropy", justify="right")
    table.add_column("KL to last", justify="right")
    for guess in guesses:
        pairs = zip(guess.tokens, guess.probabilities, strict=True)
        cells = [Text(f"{words.decode([token])!r} {probability:.3f}") for token, probability in pairs]
        table.add_row(str(guess.step), *cells, f"{guess.entropy:.3f}", f"{guess.divergence:.3f}")
    return table


# presets and demo


def presets() -> None:
    """Prints the presets: size, stacks and the system each one is."""
    table = Table(Column("preset", no_wrap=True), Column("parameters", justify="right", no_wrap=True), "stacks", "system")
    for name in PRESETS:
        config = preset(name)
        table.add_row(name, f"{cost.parameters(config)['total'].unique:,}", stacks(config, config.depth), SOURCES[name])
    console = _console()
    console.print(table)
    console.print("NAME-tiny is the same system at test size; lw.build(NAME) makes either with fresh weights.")


def demo() -> bool:
    """Builds every preset small, runs the conformance checks on each, prints one table; returns whether nothing failed."""
    table = _table("every preset at test size", "preset", "parameters", "passed", "failed", "not offered", "seconds")
    failures: list[str] = []
    with _progress() as bar:
        task = bar.add_task("demo", total=len(PRESETS) * len(conformance.CHECKS))
        for name in PRESETS:
            begin = time.perf_counter()
            torch.manual_seed(0)
            model = build(f"{name}-tiny")

            def show(one: str, name: str = name) -> None:
                bar.update(task, advance=1, description=f"{name}: {one}")

            with _fitting_threads(model):
                report = conformance.check(model, progress=show)
            counts = _counts(report.rows)
            failures += [f"{name}: {row.name}: {row.detail}" for row in report.rows if row.passed is False]
            size = sum(p.numel() for p in model.parameters())
            cells = [f"{size:,}", *(str(counts[kind]) for kind in (True, False, None)), f"{time.perf_counter() - begin:.1f}"]
            table.add_row(name, *cells, style="red" if counts[False] else None)
    console = _console()
    console.print(table)
    for failure in failures:
        console.print(f"failed: {escape(failure)}")
    called = Path(sys.argv[0])  # as it was called, where the shell would not find it by name
    call = str(called) if called.name == "loopwright" and not shutil.which("loopwright") else "loopwright"
    console.print(f"next: {call} inspect huginn --depth 64     what a model costs ({call} presets lists the names)", soft_wrap=True)
    console.print(f'      {call} check FOLDER     and: {call} generate FOLDER "Once upon a time" --show-depth', soft_wrap=True)
    return not failures
