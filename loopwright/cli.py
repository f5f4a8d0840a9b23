"""The command line: one function per verb, which says what the options mean; `commands` does the work.

A verb imports its work when it is called, so that help and mistakes cost nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NoReturn

import typer

from loopwright.exits import ending
from loopwright.interrupt import second_ends_at_once
from loopwright.options import Depth, Device, DraftDepth, Dtype, Exit, Folder, Import, Model, StateSeed, Words, seed_of, whole
from loopwright.version import VERSION


def inspect(
    model: Model,
    overrides: Annotated[list[str] | None, typer.Argument(metavar="NAME=VALUE", help="Changes to the config.")] = None,
    depth: Depth = None,
    context: Annotated[
        int | None, typer.Option(callback=whole, help="Tokens per row. Left out: 2048, or what the model can hold.")
    ] = None,
    batch: Annotated[int, typer.Option(callback=whole, help="Rows of a pass and of the cache.")] = 1,
    dtype: Dtype = "bf16",
    policy: Annotated[str, typer.Option(help="What the cache keeps: every step, the last one, or share(n) of them.")] = "every",
    tensors: Annotated[bool, typer.Option("--tensors", help="Print the state dict too: name, shape, dtype, parameters.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON instead of tables.")] = False,
    imports: Import = None,
) -> None:
    """What a model is and costs: parameters by part, FLOPs, activation and cache bytes. Nothing is loaded or allocated.

    Examples:

    loopwright inspect ouro-1.4b --depth 4 --context 4096 --batch 8

    loopwright inspect huginn core_layers=8 injection.order=input-state --json
    """
    from loopwright.commands import inspect as verb

    verb.inspect(
        model, overrides or [],
        depth=depth, context=context, batch=batch, dtype=dtype, policy=policy, tensors=tensors, as_json=as_json,
    )  # fmt: skip


def check(
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="As for inspect. Left out: all presets, tiny.")] = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    seed: Annotated[int, typer.Option(callback=seed_of, help="Of a preset's fresh weights.")] = 0,
    full: Annotated[bool, typer.Option("--full", help="Build a preset at its full size, not at test size.")] = False,
    imports: Import = None,
) -> None:
    """Is the model right? Cache, padding, causality, loss, depth, files: one row each. Exits 1 where a check fails.

    Examples:

    loopwright check ./my-model --device cuda --dtype bf16

    loopwright check asura
    """
    from loopwright.commands import check as verb

    well = verb.check_presets() if model is None else verb.check(model, dtype=dtype, device=device, seed=seed, full=full)
    if not well:
        raise typer.Exit(1)


def generate(
    model: Folder,
    prompt: Annotated[str, typer.Argument(help="The text to go on from (with --chat: what the user says).")],
    depth: Depth = None,
    max_new_tokens: Annotated[int, typer.Option(callback=whole, help="Stop after so many tokens.")] = 64,
    temperature: Annotated[float | None, typer.Option(help="Sample at this temperature. 0 or left out: greedy.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the likeliest tokens that together reach this probability.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(callback=whole, help="Sample from this many likeliest tokens.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Drop tokens below this share of the likeliest one's probability.")] = None,
    seed: Annotated[int | None, typer.Option(callback=seed_of, help="Of the sampling.")] = None,
    state_seed: StateSeed = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    chat: Annotated[bool, typer.Option("--chat", help="Wrap the prompt in the tokenizer's chat template.")] = False,
    show_depth: Annotated[bool, typer.Option("--show-depth", help="First print what each step would say next.")] = False,
    exit: Exit = None,
    draft_depth: DraftDepth = None,
    tokenizer: Words = None,
    imports: Import = None,
) -> None:
    """Text from a prompt, streamed as it comes; then one line of statistics on stderr.

    Examples:

    loopwright generate ./my-model "Once upon a time" --depth 8

    loopwright generate runs/demo-stable "79+87=" --depth 16 --show-depth

    loopwright generate ./my-chat-model "Hello" --chat --temperature 0.7 --top-p 0.95 --seed 1
    """
    from loopwright.commands import generate as verb
    from loopwright.generate.sampling import Sampling

    verb.generate(
        model, prompt,
        depth=depth, max_new_tokens=max_new_tokens, sampling=Sampling(temperature, top_p, top_k, min_p), seed=seed,
        state_seed=state_seed, device=device, dtype=dtype, chat=chat, show_depth=show_depth, exit=exit, draft_depth=draft_depth,
        tokenizer=tokenizer,
    )  # fmt: skip


def presets() -> None:
    """The systems that can be built by name, with their size and layout.

    Example:

    loopwright presets
    """
    from loopwright.commands import presets as verb

    verb.presets()


def retrofit(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A dense model's folder or hub id, with its tokenizer.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The folder to write; a model folder there is replaced.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SYSTEM] [NAME=VALUE]...", help="The system (ouroboros-identity), and changes to it."),
    ] = None,
    prelude: Annotated[str | None, typer.Option(help="How many first layers (8), or which, counted from 0 (0-7).")] = None,
    core: Annotated[str | None, typer.Option(help="Which layers to loop, never how many, counted from 0: 10-12, 18-18.")] = None,
    coda: Annotated[str | None, typer.Option(help="How many last layers (8), or which, counted from 0 (28-35).")] = None,
    search: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Score layouts of that size on this text file and take the best.")
    ] = None,
    search_by: Annotated[
        str | None, typer.Option(help="loss (left out): of the truncated models; turn: how far dropped layers turn the state.")
    ] = None,
    text: Annotated[str | None, typer.Option(metavar="TEXT", help="What bases=weighted measures activations on.")] = None,
    tokens: Annotated[int | None, typer.Option(callback=whole, help="How much of either text. Left out: 2048.")] = None,
    seed: Annotated[int, typer.Option(callback=seed_of, help="Of what starts at random.")] = 0,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    imports: Import = None,
) -> None:
    """A dense model made into a looped one: layers kept and looped, parts put on, the folder written. Nothing is trained.

    A system is a layout with parts: ouroboros, ouroboros-identity, ouroboros-coda, static, gate-only, plain-loop, healed, relaxed,
    refiner, repeat, retrofit, retrofit-identity, ouro, upcycle (docs/retrofit.md). Changes reach the layout, the start of the
    core, the bases and every part: layout=retrofit, start=average, depth=4, adapters.rank=8, gate.kind=none.

    Examples:

    loopwright retrofit ./my-llama ./looped ouroboros-identity --prelude 7 --coda 7 adapters.rank=16

    loopwright retrofit ./my-llama ./looped gate-only --search heldout.txt

    loopwright retrofit ./my-llama ./looped --prelude 4 --core 10-12 --coda 4 depth=8
    """
    from loopwright.commands import retrofit as verb

    verb.retrofit(
        source, out, words or [],
        prelude=prelude, core=core, coda=coda, search_text=search, by=search_by, text=text, tokens=tokens, seed=seed, dtype=dtype,
        device=device,
    )  # fmt: skip


def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A YAML file, or the name of a shipped recipe.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="NAME=VALUE", help="Changes to the recipe.")] = None,
    out: Annotated[str | None, typer.Option(help="The run folder. Left out: runs/RECIPE.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder, bit for bit.")] = False,
    toy: Annotated[bool, typer.Option("--toy", help="Two updates at test size: is everything in its place?")] = False,
    imports: Import = None,
) -> None:
    """A run from a recipe: trains, validates at several depths, saves. Ctrl-C saves first; --resume goes on exactly there.

    Examples:

    loopwright train demo-stable updates=300 optim.lr=1e-3 --out runs/mine

    loopwright train demo-stable updates=300 optim.lr=1e-3 --out runs/mine --resume

    accelerate launch --num_processes 2 -m loopwright train addition-stable
    """
    from loopwright.commands import train as verb

    if not verb.train(recipe, overrides or [], out=out, resume=resume, toy=toy, imports=imports or []):
        raise typer.Exit(130)


def recipes(
    name: Annotated[str | None, typer.Argument(metavar="[RECIPE]", help="Print this one in full, every setting resolved.")] = None,
    imports: Import = None,
) -> None:
    """The shipped recipes, one published experiment each.

    Examples:

    loopwright recipes

    loopwright recipes stars-addition > mine.yaml
    """
    from loopwright.commands import recipes as verb

    verb.recipes(name)


def evaluate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder; or a model's folder, with --text or --data.")],
    depths: Annotated[
        str | None, typer.Option(help="1:64, 1,2,4 or 1:1000:log. Left out: to 16 times the median trained; of --text: its own.")
    ] = None,
    split: Annotated[
        list[str] | None, typer.Option(help="A test split, or valid; may be given again. Left out: all tests.")
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Of a run: last, best, or an update's number. Left out: last.")] = None,
    data: Annotated[str | None, typer.Option(help="A recipe whose data to measure on. Left out: the run's own.")] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]FILE", help="Held-out loss of this text (.jsonl, .txt, also .gz); again: more."),
    ] = None,
    context: Annotated[
        int | None, typer.Option(callback=whole, help="Of --text: tokens of a passage. Left out: 512, or what it has.")
    ] = None,
    tokenizer: Words = None,
    field: Annotated[str | None, typer.Option(help="Of --text: where the text of a JSON line stands. Left out: text.")] = None,
    teacher_forced: Annotated[
        bool, typer.Option("--teacher-forced", help="Of --text: score a model that sees the future too, and mark it.")
    ] = False,
    honest: Annotated[
        int, typer.Option(callback=whole, help="Of --text: so many tokens scored from their prefixes alone, too.")
    ] = 0,
    rows: Annotated[
        int | None, typer.Option(callback=whole, help="Only the first so many rows of a split; of --text: so many passages, drawn.")
    ] = None,
    batch: Annotated[int | None, typer.Option(callback=whole, help="Rows of a pass. Left out: 500; of --text: what fits.")] = None,
    decode: Annotated[bool, typer.Option(help="Decode greedily too, at three depths, and compare.")] = True,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    out: Annotated[str | None, typer.Option(help="Where eval/ and figures/ go. Left out: into the run.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace results of other depths, rows or weights.")] = False,
    imports: Import = None,
) -> None:
    """A trained run at every depth from one pass: loss, exact match with intervals, overthinking; a table, a file, a figure.

    With --text: the held-out loss of any model on any text, by passage, with intervals and bits per byte. Causality is checked
    before any loss is told.

    Examples:

    loopwright evaluate runs/addition-stable --depths 1:64

    loopwright evaluate ./my-model --data stars-addition --depths 1:1000:log --device cuda

    loopwright evaluate ./my-model --text in=valid.jsonl.gz --text out=other.txt --context 512 --depths 1,2,4
    """
    from loopwright.commands import evaluate as verb

    if text:
        if split or data or not decode:
            raise ValueError(
                "evaluate: --text with --split, --data or --no-decode; allowed: texts, or the splits of a recipe's data"
            )
        verb.evaluate_text(
            run, text,
            context=context, depths=depths, checkpoint=checkpoint, tokenizer=tokenizer,
            field=verb.FIELD if field is None else field, rows=rows, batch=batch, teacher_forced=teacher_forced, honest=honest,
            device=device, dtype=dtype, out=out, overwrite=overwrite,
        )  # fmt: skip
        return
    if teacher_forced or honest or not (context is field is tokenizer is None):
        raise ValueError(
            "evaluate: --context, --field, --teacher-forced, --honest and --tokenizer belong to --text, which is not given"
        )
    verb.evaluate(
        run,
        depths=depths, splits=split or [], checkpoint=checkpoint, data=data, rows=rows, batch=batch, decode=decode, device=device,
        dtype=dtype, out=out, overwrite=overwrite,
    )  # fmt: skip


def analyze(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model's folder, a run folder or a hub id, looped or dense.")],
    prompts: Annotated[
        str, typer.Option(help="A .jsonl or .txt file, gsm8k, hellaswag, valid (a run's own rows), or the text itself.")
    ],
    depth: Annotated[
        int | None, typer.Option(callback=whole, help="Steps of a pass. Left out: 128, or as many as the model has.")
    ] = None,
    compare: Annotated[str | None, typer.Option(help="A dense model whose stages to draw beside.")] = None,
    data: Annotated[str | None, typer.Option(help="The folder of gsm8k and hellaswag. Left out: $LOOPWRIGHT_DATA.")] = None,
    examples: Annotated[int, typer.Option(callback=whole, help="At most so many prompts, drawn by the seed.")] = 32,
    seed: Annotated[int, typer.Option(callback=seed_of, help="Of the drawing of prompts.")] = 0,
    batch: Annotated[int, typer.Option(callback=whole, help="Prompts of a pass.")] = 8,
    pairs: Annotated[
        int, typer.Option(callback=whole, help="Steps of which all pairs of layers as run are compared (8 or 32); 0: none.")
    ] = 8,
    ablate: Annotated[bool, typer.Option("--ablate", help="Zero the second layer's MLP output (Figure 41).")] = False,
    tokenizer: Words = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    out: Annotated[str | None, typer.Option(help="The folder of the analysis. Left out: runs/analyze-MODEL.")] = None,
    imports: Import = None,
) -> None:
    """What goes on inside: does it converge, whose stages has it, is more depth safe? Numbers, figures and a page to read.

    A killed analysis goes on where it was when it is started again.

    Examples:

    loopwright analyze ./my-model --prompts gsm8k --data ./eval --compare ./its-base

    loopwright analyze runs/demo-stable --prompts valid --depth 64

    loopwright analyze ./my-model --prompts "Hello! I hope that you are well." --device cuda --dtype bf16
    """
    from loopwright.commands import analyze as verb

    verb.analyze(
        model, verb.Asked(prompts, data, examples, seed, tokenizer),
        depth=depth, compare=compare, batch=batch, pairs=pairs, ablate=ablate, device=device, dtype=dtype, out=out,
    )  # fmt: skip


def demo(
    out: Annotated[str | None, typer.Option(help="The folder of the demo. Left out: runs/demo (with --toy runs/demo-toy).")] = None,
    toy: Annotated[bool, typer.Option("--toy", help="Two updates each: does the page come out? Shows nothing, exits 1.")] = False,
) -> None:
    """Two small models learn to add; beyond the depth they were trained at one collapses, one holds. Minutes on a CPU.

    Writes a page to look at. Exits 1 where the run does not show it.

    Example:

    loopwright demo
    """
    from loopwright.commands import demo as verb

    if not verb.demo(out, toy=toy):
        raise typer.Exit(1)


VERBS: dict[str, Callable[..., None]] = {
    verb.__name__: verb for verb in (inspect, check, generate, presets, retrofit, recipes, train, evaluate, analyze, demo)
}


def make_app() -> typer.Typer:
    """Returns the command line with every verb of the table."""
    app = typer.Typer(
        name="loopwright",
        help="Looped language models: build, train, measure and run them. Start with: loopwright demo",
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    for name, verb in VERBS.items():
        app.command(name)(verb)
    return app


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=lambda on: _show_version(on))
    ] = False,
) -> None: ...


def _show_version(on: bool) -> None:
    if on:
        print(f"loopwright {VERSION}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits: 0 well, 1 a check failed, 2 a mistake, 70 an error of ours, 130 interrupted, 141 unread."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch comes: threads that spin while they wait starve the others
    words = list(sys.argv[1:] if arguments is None else arguments)
    # typer brings its own click or uses the package, by version; either way this is the base of all usage errors
    ending(lambda: _run(words or ["--help"]), typer.BadParameter.__base__)


def _run(words: list[str]) -> Any:
    try:
        with second_ends_at_once():
            return make_app()(words, standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None


if __name__ == "__main__":
    main()
