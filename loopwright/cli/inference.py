"""The verbs that run a model: on a prompt, in a conversation, over HTTP, on a page."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from loopwright.cli.options import (
    Constrain,
    Depth,
    Device,
    DraftDepth,
    Dtype,
    Exit,
    Folder,
    Import,
    Json,
    MinP,
    Seed,
    StateSeed,
    Temperature,
    TopK,
    TopP,
    Words,
    whole,
    with_json,
)


@with_json
def generate(
    model: Folder,
    prompt: Annotated[str, typer.Argument(help="The text to continue (with --chat: the user's message).")],
    depth: Depth = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(callback=whole, help="Stop after this many tokens. Default: generation_config.json's, or 64."),
    ] = None,
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
) -> dict[str, Any]:
    """Continue a prompt, streaming the text; then print one line of statistics to stderr.

    Examples:

    loopwright generate ./my-model "Once upon a time" --depth 8

    loopwright generate runs/demo-stable "79+87=" --depth 16 --show-depth

    loopwright generate ./my-chat-model "Hello" --chat --temperature 0.7 --top-p 0.95 --seed 1
    """
    from loopwright.cli import continuation
    from loopwright.generation.sampling import Sampling

    return continuation.generate(
        model, prompt,
        depth=depth, max_new_tokens=max_new_tokens, sampling=Sampling(temperature, top_p, top_k, min_p), seed=seed,
        state_seed=state_seed, device=device, dtype=dtype, chat=chat, show_depth=show_depth, exit=exit, draft_depth=draft_depth,
        tokenizer=tokenizer, constrain=constrain,
    )  # fmt: skip


def chat(
    model: Folder,
    depth: Depth = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(callback=whole, help="Stop an answer after this many tokens. Default: generation_config.json's, or 256."),
    ] = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    min_p: MinP = None,
    seed: Seed = None,
    state_seed: StateSeed = None,
    exit: Exit = None,
    context: Annotated[
        int | None, typer.Option(callback=whole, help="Tokens of a conversation. Default: 4096, or the model's most.")
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    tokenizer: Words = None,
    imports: Import = None,
) -> None:
    """Talk to a model: by its chat template where the tokenizer has one, else as one text that you and the model write in turn.

    /depth 8, /temperature 0.7, /reset, /help and /quit are commands. Ctrl-C stops an answer, a second one ends. Lines may come
    from a pipe.

    Examples:

    loopwright chat ./my-chat-model --temperature 0.7 --depth 8

    echo "Once upon a time" | loopwright chat runs/stories
    """
    from loopwright.cli import conversation
    from loopwright.generation.sampling import Sampling

    conversation.chat(
        model,
        depth=depth, max_new_tokens=max_new_tokens, sampling=Sampling(temperature, top_p, top_k, min_p), seed=seed,
        state_seed=state_seed, exit=exit, context=context, device=device, dtype=dtype, tokenizer=tokenizer,
    )  # fmt: skip


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
    generation_config: Annotated[
        str,
        typer.Option(
            metavar="auto|none|FOLDER",
            help="Which generation_config.json fills in what a request leaves open: the model's, none, or a folder's.",
        ),
    ] = "auto",
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Without a key: answer to this name too, beside localhost and the server's address; repeatable."
        ),
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
    from loopwright.cli import service

    service.serve(
        models,
        host=host, port=port, api_key_env=api_key_env, max_rows=max_rows, max_tokens=max_tokens, depth=depth, max_depth=max_depth,
        max_new_tokens=max_new_tokens, max_choices=max_choices, max_queue=max_queue, max_body=max_body,
        cors_origin=cors_origin or [], allowed_host=allowed_host or [], generation_config=generation_config,
        drain_seconds=drain_seconds, device=device, dtype=dtype,
        tokenizer=tokenizer,
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
    from loopwright.cli import service

    service.explore(
        models,
        port=port, browser=not no_browser, depth=depth, max_depth=max_depth, device=device, dtype=dtype, tokenizer=tokenizer,
    )  # fmt: skip
