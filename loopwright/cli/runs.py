"""The verbs about runs and what is measured of them: train, evaluate, compare, time, look inside; and a demonstration."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from loopwright.cli.options import (
    AnswerTokens,
    Context,
    Device,
    Dtype,
    Exits,
    Import,
    Json,
    Measured,
    Rows,
    StateSeed,
    Texts,
    Words,
    recipe_names,
    seed_of,
    whole,
    with_json,
)


@with_json
def recipes(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[RECIPE]", help="Print this one in full, every setting resolved.", autocompletion=recipe_names),
    ] = None,
    as_json: Json = False,
    imports: Import = None,
) -> Any:
    """List the shipped recipes, or print one.

    Examples:

    loopwright recipes

    loopwright recipes stars-addition > mine.yaml
    """
    from rich.table import Column, Table

    from loopwright.cli.console import console
    from loopwright.recipes import FOLDER, find, names
    from loopwright.schema import read_yaml

    if name is not None:
        from loopwright.training.recipe import shown_recipe  # every table of kinds, and torch with them

        text = shown_recipe(find(name))
        print(text, end="")
        return read_yaml(text, name)
    table = Table(Column("recipe", no_wrap=True), "what it trains")
    rows = [{"recipe": one, "about": read_yaml((FOLDER / f"{one}.yaml").read_text(), one)["about"]} for one in names()]
    for row in rows:
        table.add_row(*row.values())
    out = console()
    out.print(table)
    out.print(
        "loopwright train NAME a.b=c … trains one, changed; --toy runs two updates of it at test size; recipes NAME prints it."
    )
    return rows


def train(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A YAML file, or the name of a shipped recipe.", autocompletion=recipe_names)
    ],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="NAME=VALUE", help="Changes to the recipe.")] = None,
    out: Annotated[str | None, typer.Option(help="The run folder. Default: runs/RECIPE.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder, bit for bit.")] = False,
    toy: Annotated[bool, typer.Option("--toy", help="Run two updates at test size, to see that everything works.")] = False,
    track: Annotated[
        str | None, typer.Option(metavar="NAME", help="Send the log's rows to trackio, wandb, mlflow or tensorboard as well.")
    ] = None,
    imports: Import = None,
) -> None:
    """Train a run from a recipe: train, validate at several depths, save. Ctrl-C saves first; --resume continues exactly there.

    It runs on the GPU where there is one (CUDA_VISIBLE_DEVICES chooses), else on the CPU.

    Examples:

    loopwright train demo-stable updates=300 optim.lr=1e-3 --out runs/mine

    loopwright train demo-stable updates=300 optim.lr=1e-3 --out runs/mine --resume

    loopwright train demo-stable --track trackio

    accelerate launch --num_processes 2 -m loopwright train addition-stable
    """
    import shlex
    from pathlib import Path

    from accelerate import PartialState

    from loopwright.cli.console import console
    from loopwright.process import fitting_threads
    from loopwright.recipes import find
    from loopwright.recipes import recipe as find_recipe
    from loopwright.registry import noted_files
    from loopwright.training import loop
    from loopwright.training.report import Terminal

    changes = [*(overrides or []), *([] if track is None else [f"track={track}"])]
    chosen = find_recipe(recipe, changes, toy=toy)
    folder = Path(out) if out else Path("runs") / (find(recipe).stem + ("-toy" if toy else ""))
    outcome = loop.train(chosen, folder, resume=resume, reporter=Terminal(folder.name), within=fitting_threads)
    if PartialState().is_main_process:
        parts = [word for file in imports or [] for word in ("--import", file)]
        words = [recipe, *changes, *(["--toy"] if toy else []), *parts, "--out", str(folder), "--resume"]
        again = shlex.join(["loopwright", "train", *words])
        then = shlex.join(["loopwright", "evaluate", str(folder), *(word for file in noted_files() for word in ("--import", file))])
        line = f"next: {then}" if outcome.finished else f"go on with: {again}"
        console(stderr=not outcome.finished).print(line, markup=False, soft_wrap=True)
    if not outcome.finished:
        raise KeyboardInterrupt


@with_json
def evaluate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder; or a model's folder, with --text, --tasks or --data.")],
    depths: Measured = None,
    split: Annotated[list[str] | None, typer.Option(help="A test split, or valid; repeatable. Default: all tests.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="With a run: last, best, or an update's number. Default: last.")] = None,
    data: Annotated[
        str | None, typer.Option(help="A recipe whose data to measure on. Default: the run's own.", autocompletion=recipe_names)
    ] = None,
    text: Texts = None,
    context: Context = None,
    tokenizer: Words = None,
    field: Annotated[str | None, typer.Option(help="With --text: the field of a JSON line with the text. Default: text.")] = None,
    teacher_forced: Annotated[
        bool, typer.Option("--teacher-forced", help="With --text: also score a model that sees the future, and mark it.")
    ] = False,
    honest: Annotated[int, typer.Option(callback=whole, help="With --text: also score N tokens from their prefixes alone.")] = 0,
    rows: Rows = None,
    batch: Annotated[int | None, typer.Option(callback=whole, help="Rows in a pass. Default: 500; with --text: what fits.")] = None,
    decode: Annotated[bool, typer.Option(help="Also decode greedily at three depths, and compare.")] = True,
    exit: Exits = None,
    time: Annotated[bool, typer.Option("--time", help="With --exit: also run each rule by the engine and time it.")] = False,
    tasks: Annotated[str | None, typer.Option(metavar="NAME,…", help="Tasks of lm-eval. Needs the extra eval.")] = None,
    task_data: Annotated[str | None, typer.Option(metavar="FOLDER", help="Files of a task's questions. Default: the hub.")] = None,
    shots: Annotated[int | None, typer.Option(callback=whole, help="Examples before a question. Default: the task's.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="With --tasks: put questions in the tokenizer's chat template.")] = False,
    system: Annotated[str | None, typer.Option(help="With --chat: a system message, a text or a .txt file.")] = None,
    max_new_tokens: AnswerTokens = None,
    state_seeds: Annotated[
        int | None, typer.Option(callback=whole, help="Of a state that is noise: measure from N starts, and how far they spread.")
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    out: Annotated[str | None, typer.Option(help="Where eval/ and figures/ go. Default: into the run.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace results of other depths, rows or weights.")] = False,
    as_json: Json = False,
    imports: Import = None,
) -> dict[str, Any]:
    """Measure a run at every depth from one pass: loss, exact match with intervals, overthinking; as table, file and figure.

    With --text: measure the held-out loss of any model on any text, by passage, and bits per byte. Causality is checked before
    any loss is printed. Intervals are over the documents of text, also of a run's windows, and else over rows.

    With --exit: draw what early exits would cost and give, every rule and limit from one pass, beside fixed and random depths and
    an oracle. A rule without a limit stands for its usual ones. With --time: also over the time of decoding, batch 1 and 16.

    With --tasks: answer the questions of lm-eval's tasks at every depth; the numbers are those of lm-eval's hf model.

    Examples:

    loopwright evaluate runs/addition-stable --depths 1:64

    loopwright evaluate ./my-model --data stars-addition --depths 1:1000:log --device cuda

    loopwright evaluate ./my-model --text in=valid.jsonl.gz --text out=other.txt --context 512 --depths 1,2,4

    loopwright evaluate ./my-model --text in=valid.jsonl.gz --depths 8 --exit all

    loopwright evaluate runs/demo-stable --exit change --exit lookahead:entropy:0.3

    loopwright evaluate ./my-model --tasks arc_easy,hellaswag,gsm8k --depths 1,2,4,8

    loopwright evaluate ./my-chat-model --tasks gsm8k --shots 0 --chat --system "You reason." --max-new-tokens 2048
    """
    from loopwright.cli import results

    asking = {"chat": chat, "system": system, "max_new_tokens": max_new_tokens}
    return results.as_data(results.evaluate(
        run,
        depths=depths, splits=split or [], checkpoint=checkpoint, data=data, texts=text or [], context=context, tokenizer=tokenizer,
        field=field, teacher_forced=teacher_forced, honest=honest, rows=rows, batch=batch, decode=decode, exit=exit or [],
        time=time, tasks=tasks, task_data=task_data, shots=shots, asking=asking, state_seeds=state_seeds, device=device,
        dtype=dtype, out=out, overwrite=overwrite,
    ))  # fmt: skip


@with_json
def compare(
    first: Annotated[str, typer.Argument(metavar="FIRST", help="A run, a model's folder or a hub id.")],
    second: Annotated[str, typer.Argument(metavar="SECOND", help="The other; the same again compares two depths.")],
    depths: Annotated[
        str | None,
        typer.Option(metavar="D[,D]", help="One depth for both (4), or one each (8,1; dense: 1). Default: their own."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="A recipe whose data to compare on. Default: the first run's own.", autocompletion=recipe_names),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(metavar="[NAME=]FILE", help="Compare the held-out loss of this text; repeatable.")
    ] = None,
    context: Annotated[int | None, typer.Option(callback=whole, help="With --text: tokens per passage. Default: 512.")] = None,
    tokenizer: Words = None,
    split: Annotated[list[str] | None, typer.Option(help="A test split, or valid; repeatable. Default: all tests.")] = None,
    rows: Annotated[int | None, typer.Option(callback=whole, help="How many rows or passages. Default: all.")] = None,
    batch: Annotated[int | None, typer.Option(callback=whole, help="Rows of a pass.")] = None,
    device: Device = "cpu",
    as_json: Json = False,
    imports: Import = None,
) -> Any:
    """Compare two models, or one at two depths, on the same rows or passages: paired differences with 95 % intervals.

    Intervals are over the documents of text, also of a run's windows, and else over rows. A difference is decided where its
    interval leaves 0 out, with at least 6 documents or rows.

    Examples:

    loopwright compare runs/demo-stable runs/demo-plain --depths 16

    loopwright compare runs/mine runs/mine --depths 8,1

    loopwright compare ./looped ./dense --text heldout.jsonl --json
    """
    from loopwright import api
    from loopwright.cli.console import console, told_warnings
    from loopwright.cli.opening import find_device
    from loopwright.cli.results import name_texts, parse_pair

    with told_warnings():
        comparison = api.compare(
            first, second,
            depths=parse_pair(depths), data=data, text=name_texts(text or []) or None, tokenizer=tokenizer, splits=split or [],
            rows=rows, batch=batch, context=context, device=find_device(device),
        )  # fmt: skip
    printer = console()
    printer.print(comparison.table(printer.width))
    return comparison


@with_json
def bench(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model's folder, a run, a hub id, or a preset (random weights).")],
    depths: Annotated[str | None, typer.Option(help="1,4 or 1:8. Default: 1, half the model's own depth, its own.")] = None,
    batches: Annotated[str, typer.Option(help="How many sequences at once: 1,8,32.")] = "1,4,16",
    prompt_tokens: Annotated[int, typer.Option(callback=whole, help="Tokens of each prompt.")] = 64,
    new_tokens: Annotated[int, typer.Option(callback=whole, help="Tokens generated after each.")] = 32,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    as_json: Json = False,
    out: Annotated[str | None, typer.Option(help="Also write bench.json and bench.svg into this folder.")] = None,
    imports: Import = None,
) -> Any:
    """Measure how fast a model decodes: tokens/s, time to first token and memory, at depths and batch sizes.

    Beside each speed stands the bound: a token reads the core's weights once per step, the other weights once and every row's
    keys, at the speed of a memory copy, which is measured first. A share near 1 means that memory is the limit, and only fewer
    steps, smaller weights or a larger batch help; a small share is time spent elsewhere.

    Examples:

    loopwright bench ./my-model --depths 1,4,8 --batches 1,8,32

    loopwright bench ouro-1.4b --device cuda --dtype bf16 --out runs/bench

    OMP_NUM_THREADS=1 loopwright bench ./my-model --json
    """
    import json
    from pathlib import Path

    from loopwright.checkpoints.source import Source
    from loopwright.cli.console import console
    from loopwright.cli.opening import find_device, find_dtype, open_model
    from loopwright.cli.results import need_writable
    from loopwright.evaluation.by_depth import parse_depths
    from loopwright.evaluation.throughput import throughput
    from loopwright.model.presets import build
    from loopwright.process import fitting_threads, say
    from loopwright.storage.files import write_whole
    from loopwright.storage.run import RunFolder

    where, kind = find_device(device), find_dtype(dtype)
    opened, sizes = Source(model), parse_depths(batches, "batches")
    asked = parse_depths(depths) if depths else None
    if out is not None:
        RunFolder(out).check_out("bench")
        need_writable("bench", Path(out))
    if opened.is_preset:  # speed does not depend on what the weights are
        built = build(model).to(device=where, dtype=kind)  # type: ignore[call-arg]  # how transformers wraps `to`
    else:
        opened.need_weights("bench")
        built = open_model(opened, kind, where)
    usual = built.config.check_depth(None)
    with fitting_threads(built):
        report = throughput(
            built, asked or ([1] if not built.config.is_looped else sorted({1, max(1, usual // 2), usual})), sizes,
            prompt_tokens=prompt_tokens, new_tokens=new_tokens, source=opened.name,
            tell=lambda line: say(f"bench: {line} …"),
        )  # fmt: skip
    printer = console()
    printer.print(report.table(printer.width))
    if out is not None:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "bench.json", json.dumps(report.to_dict(), indent=2) + "\n")
        report.plot(folder / "bench.svg")
        for name in ("bench.json", "bench.svg"):
            printer.print(f"written: {folder / name}", markup=False, soft_wrap=True)
    return report


def analyze(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model's folder, a run folder or a hub id, looped or dense.")],
    prompts: Annotated[
        str, typer.Option(help="A .jsonl or .txt file, gsm8k, hellaswag, valid (a run's own rows), or the text itself.")
    ],
    depth: Annotated[int | None, typer.Option(callback=whole, help="Number of steps. Default: 128, or the model's most.")] = None,
    compare: Annotated[str | None, typer.Option(help="A dense model to draw beside it.")] = None,
    data: Annotated[str | None, typer.Option(help="The folder of gsm8k and hellaswag. Default: $LOOPWRIGHT_DATA.")] = None,
    examples: Annotated[int, typer.Option(callback=whole, help="At most this many prompts, drawn by the seed.")] = 32,
    seed: Annotated[int, typer.Option(callback=seed_of, help="Seed for drawing prompts.")] = 0,
    batch: Annotated[int, typer.Option(callback=whole, help="Prompts in a pass.")] = 8,
    pairs: Annotated[int, typer.Option(callback=whole, help="Compare all pairs of layers over N steps (8 or 32); 0: none.")] = 8,
    state_seed: StateSeed = None,
    ablate: Annotated[bool, typer.Option("--ablate", help="Zero the second layer's MLP output (Figure 41).")] = False,
    system: Annotated[str | None, typer.Option(help="A system prompt before each prompt: a text or a .txt file.")] = None,
    pad_system: Annotated[bool, typer.Option("--pad-system", help="As many padding tokens in its place (a control).")] = False,
    series: Annotated[
        str, typer.Option(help="What tokens are classified by: similarity or norm, to their last state.")
    ] = "similarity",
    tau: Annotated[float, typer.Option(help="How near the last state is near, between 0 and 1.")] = 0.05,
    p: Annotated[float, typer.Option(help="The share of steps near it that makes a fixed point.")] = 0.9,
    tokenizer: Words = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    out: Annotated[str | None, typer.Option(help="The folder of the analysis. Default: runs/analyze-MODEL.")] = None,
    imports: Import = None,
) -> None:
    """Look inside a model: does it converge, which stages does it have, is more depth safe? Writes numbers, figures and a page.

    An analysis that was killed continues when it is started again.

    Examples:

    loopwright analyze ./my-model --prompts gsm8k --data ./eval --compare ./its-base

    loopwright analyze runs/demo-stable --prompts valid --depth 64

    loopwright analyze ./my-model --prompts "Hello! I hope that you are well." --device cuda --dtype bf16
    """
    from loopwright.cli import analysis

    analysis.analyze(
        model, analysis.PromptOptions(prompts, data, examples, seed, tokenizer, system, pad_system),
        depth=depth, compare=compare, batch=batch, pairs=pairs, state_seed=state_seed, ablate=ablate,
        limits=analysis.LimitOptions(tau, p, series), device=device, dtype=dtype, out=out,
    )  # fmt: skip


def demo(
    out: Annotated[str | None, typer.Option(help="The folder of the demo. Default: runs/demo (with --toy runs/demo-toy).")] = None,
    toy: Annotated[bool, typer.Option("--toy", help="Two updates each: does the page come out? Shows nothing; exits 1.")] = False,
) -> None:
    """Train two small models to add. Beyond the training depth one collapses and one holds. Minutes on a CPU.

    Writes a page to look at. Exits 1 if the run does not show it.

    Example:

    loopwright demo
    """
    from loopwright.cli import demonstration

    if not demonstration.demo(out, toy=toy):
        raise typer.Exit(1)
