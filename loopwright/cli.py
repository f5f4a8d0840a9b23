"""The command line: one function per verb, which says what the options mean; `commands` does the work.

A verb imports its work when it is called, so that help and mistakes cost nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, NoReturn

import typer

from loopwright.cli_runs import analyze, bench, chat, compare, demo, evaluate, recipes, train
from loopwright.exits import ending
from loopwright.imports import own_files
from loopwright.interrupt import second_ends_at_once
from loopwright.options import (
    Changes,
    Constrain,
    Depth,
    Device,
    DraftDepth,
    Dtype,
    Exit,
    Folder,
    Gpu,
    Gpus,
    Import,
    InspectDtype,
    Json,
    Link,
    MinP,
    ModelOrRecipe,
    Network,
    PerNode,
    RowTokens,
    Seed,
    StateSeed,
    Temperature,
    TopK,
    TopP,
    TrainCost,
    Words,
    passed,
    preset_names,
    seed_of,
    whole,
)
from loopwright.version import VERSION


def inspect(
    model: ModelOrRecipe,
    overrides: Changes = None,
    depth: Depth = None,
    context: RowTokens = None,
    batch: Annotated[int | None, typer.Option(callback=whole, help="Rows in a pass and in the cache. Default: 1.")] = None,
    dtype: InspectDtype = None,
    policy: Annotated[str | None, typer.Option(help="What the cache keeps: every step (default), last, or share(n).")] = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="Print the state dict too: name, shape, dtype, parameters.")] = False,
    train: TrainCost = False,
    gpus: Gpus = None,
    gpu: Gpu = None,
    per_node: PerNode = None,
    link: Link = None,
    network: Network = None,
    as_json: Json = False,
    imports: Import = None,
) -> None:
    """Show what a model is and costs: parameters by part, FLOPs, activation and cache bytes. Loads and allocates nothing.

    With --train, show what training a recipe costs on several GPUs: memory on each and seconds an update, by DDP (a copy on each
    GPU) and FSDP2 (a share of the parameters on each; kept: gathered once a batch, as `loopwright train` does; each step: gathered
    anew whenever a layer runs). An estimate from FLOPs, bytes and bandwidths; docs/training.md says how near it comes.

    Examples:

    loopwright inspect ouro-1.4b --depth 4 --context 4096 --batch 8

    loopwright inspect huginn core_layers=8 injection.order=input-state --json

    loopwright inspect ouro-pretrain --train --gpus 8 remat=none

    loopwright inspect huginn-pretrain --train --gpus 64 batch=4096 --network 50
    """
    from loopwright.commands.console import show
    from loopwright.commands.models import inspect as verb

    where = passed(gpus=gpus, gpu=gpu, per_node=per_node, link=link, network=network)
    options = passed(batch=batch, dtype=dtype, policy=policy, tensors=tensors or None)
    if train:
        from loopwright.commands.models.inspect_train import inspect_train

        if options:
            raise typer.BadParameter("--batch, --dtype, --policy and --tensors do not go with --train: say batch=…, precision=…")
        show(lambda: inspect_train(model, overrides or [], where=where, depth=depth, context=context), as_json)
        return
    if where:
        raise typer.BadParameter(f"--{next(iter(where)).replace('_', '-')} needs --train, and a recipe in the place of the model")
    show(lambda: verb.inspect(model, overrides or [], depth=depth, context=context, **options), as_json)


def check(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="As for inspect. Default: all presets, tiny.", autocompletion=preset_names),
    ] = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    seed: Annotated[int, typer.Option(callback=seed_of, help="Seed of a preset's new weights.")] = 0,
    full: Annotated[bool, typer.Option("--full", help="Build a preset at its full size, not at test size.")] = False,
    as_json: Json = False,
    imports: Import = None,
) -> None:
    """Check that a model is right: cache, padding, causality, loss, depth, files, one row each. Exits 1 if a check fails.

    Examples:

    loopwright check ./my-model --device cuda --dtype bf16

    loopwright check asura
    """
    from loopwright.commands.console import show
    from loopwright.commands.models import check as verb

    reports = show(lambda: verb.check_presets() if model is None else verb.check(
        model, dtype=dtype, device=device, seed=seed, full=full,
    ), as_json)  # fmt: skip
    if not all(report.ok for report in reports.values()):
        raise typer.Exit(1)


def generate(
    model: Folder,
    prompt: Annotated[str, typer.Argument(help="The text to continue (with --chat: the user's message).")],
    depth: Depth = None,
    max_new_tokens: Annotated[int, typer.Option(callback=whole, help="Stop after this many tokens.")] = 64,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    min_p: MinP = None,
    seed: Seed = None,
    state_seed: StateSeed = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    chat: Annotated[bool, typer.Option("--chat", help="Wrap the prompt in the tokenizer's chat template.")] = False,
    show_depth: Annotated[bool, typer.Option("--show-depth", help="First print what each step would predict next.")] = False,
    exit: Exit = None,
    draft_depth: DraftDepth = None,
    constrain: Constrain = None,
    tokenizer: Words = None,
    as_json: Json = False,
    imports: Import = None,
) -> None:
    """Continue a prompt, streaming the text; then print one line of statistics to stderr.

    Examples:

    loopwright generate ./my-model "Once upon a time" --depth 8

    loopwright generate runs/demo-stable "79+87=" --depth 16 --show-depth

    loopwright generate ./my-chat-model "Hello" --chat --temperature 0.7 --top-p 0.95 --seed 1
    """
    from loopwright.commands.console import show
    from loopwright.commands.inference import generate as verb
    from loopwright.generate.sampling import Sampling

    show(lambda: verb.generate(
        model, prompt,
        depth=depth, max_new_tokens=max_new_tokens, sampling=Sampling(temperature, top_p, top_k, min_p), seed=seed,
        state_seed=state_seed, device=device, dtype=dtype, chat=chat, show_depth=show_depth, exit=exit, draft_depth=draft_depth,
        tokenizer=tokenizer, constrain=constrain,
    ), as_json)  # fmt: skip


def serve(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Folders, runs or hub ids with their tokenizers; as NAME=MODEL by a name."),
    ],
    host: Annotated[str, typer.Option(help="The address to listen on. 0.0.0.0: every one of this machine's.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(callback=whole, help="The port. 0: any that is free.")] = 8000,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="The environment variable that holds the key clients must send.")
    ] = None,
    max_rows: Annotated[int, typer.Option(callback=whole, help="Sequences that run at a time, of each model.")] = 16,
    max_tokens: Annotated[int, typer.Option(callback=whole, help="Tokens in memory at --depth, of each model's sequences.")] = 8192,
    depth: Annotated[
        int | None, typer.Option(callback=whole, help="Steps of a request that gives none. Default: the model's own.")
    ] = None,
    max_depth: Annotated[
        int | None,
        typer.Option(callback=whole, help="Most steps a request may ask for. Default: the model's last, or 4 times --depth."),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(callback=whole, help="Longest answer, in tokens.")] = 4096,
    max_choices: Annotated[int, typer.Option(callback=whole, help="Most answers to one request: prompts times n.")] = 64,
    max_queue: Annotated[int, typer.Option(callback=whole, help="Sequences that may wait; beyond it: 429, with Retry-After.")] = 64,
    max_body: Annotated[int, typer.Option(callback=whole, help="Largest body of a request, in bytes.")] = 2**20,
    cors_origin: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="Let web pages of this origin ask; repeatable. Default: none.")
    ] = None,
    drain_seconds: Annotated[int, typer.Option(callback=whole, help="After SIGTERM: how long begun answers may take.")] = 30,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    tokenizer: Words = None,
    imports: Import = None,
) -> None:
    """Serve models over HTTP as OpenAI's API does, with a depth, an exit rule or drafts per request. JSON access log on stdout.

    Routes: /v1/chat/completions, /v1/completions, /v1/models, /v1/tokenize, /health, /metrics, and the explorer's page at /.
    Needs the extra `serve`.

    Examples:

    loopwright serve ./my-model

    loopwright serve small=./a large=./b --host 0.0.0.0 --api-key-env LOOPWRIGHT_KEY > access.jsonl

    curl localhost:8000/v1/completions -H 'Content-Type: application/json' -d '{"prompt": "Once upon a time", "depth": 8}'
    """
    from loopwright.commands.inference import serve as verb

    verb.serve(
        models,
        host=host, port=port, api_key_env=api_key_env, max_rows=max_rows, max_tokens=max_tokens, depth=depth, max_depth=max_depth,
        max_new_tokens=max_new_tokens, max_choices=max_choices, max_queue=max_queue, max_body=max_body,
        cors_origin=cors_origin or [], drain_seconds=drain_seconds, device=device, dtype=dtype, tokenizer=tokenizer,
    )  # fmt: skip


def explore(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="As for serve; a dense model opens too.")],
    port: Annotated[int, typer.Option(callback=whole, help="The port, on loopback. 0: any that is free.")] = 8000,
    depth: Annotated[
        int | None, typer.Option(callback=whole, help="Where the slider starts, in steps. Default: the model's own depth.")
    ] = None,
    max_depth: Annotated[
        int | None, typer.Option(callback=whole, help="Where the slider ends. Default: the model's last step, or 4 times --depth.")
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address and open nothing.")] = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    tokenizer: Words = None,
    imports: Import = None,
) -> None:
    """Watch a loop think: open a page in the browser that shows a prompt step by step, and lets you edit a pass.

    Needs the extra `serve`. The same page is at / of `loopwright serve`.

    Examples:

    loopwright explore ./my-model

    loopwright explore looped=./a dense=./b --max-depth 32 --no-browser
    """
    from loopwright.commands.inference import explore as verb

    verb.explore(
        models,
        port=port, browser=not no_browser, depth=depth, max_depth=max_depth, device=device, dtype=dtype, tokenizer=tokenizer,
    )  # fmt: skip


def presets(as_json: Json = False) -> None:
    """List the systems that can be built by name, with their size and layout.

    Example:

    loopwright presets
    """
    from loopwright.commands.console import show
    from loopwright.commands.models import presets as verb

    show(verb.presets, as_json)


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
    search_by: Annotated[str | None, typer.Option(help="loss (default), or turn: how far dropped layers turn the state.")] = None,
    search_depth: Annotated[int | None, typer.Option(callback=whole, help="Steps of the core that is scored. Default: 1.")] = None,
    text: Annotated[str | None, typer.Option(metavar="TEXT", help="The text that bases=weighted measures activations on.")] = None,
    tokens: Annotated[int | None, typer.Option(callback=whole, help="How many tokens of either text. Default: 2048.")] = None,
    seed: Annotated[int, typer.Option(callback=seed_of, help="Seed of what starts at random.")] = 0,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    as_json: Json = False,
    imports: Import = None,
) -> None:
    """Make a dense model looped: keep some layers, loop some, add parts, write a folder. Nothing is trained.

    A system is a layout with parts: ouroboros, ouroboros-identity, ouroboros-coda, static, gate-only, plain-loop, healed, relaxed,
    refiner, repeat, retrofit, retrofit-identity, ouro, upcycle (docs/retrofit.md). Changes apply to the layout, the start of the
    core, the bases and every part: layout=retrofit, start=average, depth=4, adapters.rank=8, gate.kind=none.

    Examples:

    loopwright retrofit ./my-llama ./looped ouroboros-identity --prelude 7 --coda 7 adapters.rank=16

    loopwright retrofit ./my-llama ./looped gate-only --search heldout.txt

    loopwright retrofit ./my-llama ./looped --prelude 4 --core 10-12 --coda 4 depth=8
    """
    from loopwright.commands.console import show
    from loopwright.commands.models import retrofit as verb

    show(lambda: verb.retrofit(
        source, out, words or [],
        prelude=prelude, core=core, coda=coda, search_text=search, by=search_by, search_depth=search_depth, text=text,
        tokens=tokens, seed=seed, dtype=dtype, device=device, command=["loopwright", *_WORDS],
    ), as_json)  # fmt: skip


def push(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="The folder of a saved model, a run or a checkpoint.")],
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The repository. Made where it is not there.")],
    private: Annotated[bool, typer.Option("--private", help="Visible to its owner alone; refuses a public one.")] = False,
    as_json: Json = False,
    imports: Import = None,
) -> None:
    """Upload a model to the Hugging Face hub, with its card, after its files were checked. Needs a token (hf auth login).

    Example:

    loopwright push runs/mine me/my-looped-model --private
    """
    from loopwright.commands.console import show
    from loopwright.commands.models import push as verb

    show(lambda: verb.push(folder, repo, private=private), as_json)


_SHOWING = (inspect, check, generate, chat, serve, explore, presets)
_MAKING = (retrofit, recipes, train, evaluate, compare, bench, analyze, push, demo)
VERBS: dict[str, Callable[..., None]] = {verb.__name__: verb for verb in (*_SHOWING, *_MAKING)}


def make_app(verbs: Iterable[str] = VERBS) -> typer.Typer:
    """Returns the command line with these verbs of the table. Typer reads the options of each, so a call names the one it needs."""
    app = typer.Typer(
        name="loopwright",
        help="Looped language models: build, train, measure and run them. Start with: loopwright demo",
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    for name in verbs:
        app.command(name)(VERBS[name])
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


_WORDS: list[str] = []  # of the command line that runs: cards show it


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits: 0 well, 1 a check failed, 2 a mistake, 70 an error of ours, 130 interrupted, 141 unread."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch comes: threads that spin while they wait starve the others
    words = list(sys.argv[1:] if arguments is None else arguments)
    _WORDS[:] = words
    # typer brings its own click or uses the package, by version; either way this is the base of all usage errors
    usage_error: Any = typer.BadParameter.__base__
    ending(lambda: _run(words or ["--help"]), usage_error, own_files)


def _run(words: list[str]) -> Any:
    try:
        with second_ends_at_once():
            return make_app(words[:1] if words[0] in VERBS else VERBS)(words, standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None


if __name__ == "__main__":
    main()
