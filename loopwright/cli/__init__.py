"""The command line: one function per verb, which says what the options mean, calls the library and prints what it returns.

A verb imports its work when it is called, so that help and mistakes cost nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, NoReturn

import typer

from loopwright.cli.inference import chat, explore, generate, serve
from loopwright.cli.models import check, inspect, presets, push, retrofit
from loopwright.cli.options import COMMAND
from loopwright.cli.runs import analyze, bench, compare, demo, evaluate, recipes, train
from loopwright.errors import run_and_exit
from loopwright.process import second_ends_at_once
from loopwright.registry import own_files
from loopwright.version import VERSION

_SHOWING = (inspect, check, generate, chat, serve, explore, presets)
_MAKING = (retrofit, recipes, train, evaluate, compare, bench, analyze, push, demo)
VERBS: dict[str, Callable[..., Any]] = {verb.__name__: verb for verb in (*_SHOWING, *_MAKING)}


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


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits: 0 well, 1 a check failed, 2 a mistake, 70 an error of ours, 130 interrupted, 141 unread."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch comes: threads that spin while they wait starve the others
    words = list(sys.argv[1:] if arguments is None else arguments)
    COMMAND[:] = words
    # typer brings its own click or uses the package, by version; either way this is the base of all usage errors
    usage_error: Any = typer.BadParameter.__base__
    run_and_exit(lambda: _run(words or ["--help"]), usage_error, own_files)


def _run(words: list[str]) -> Any:
    try:
        with second_ends_at_once():
            return make_app(words[:1] if words[0] in VERBS else VERBS)(words, standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
