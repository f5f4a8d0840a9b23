"""`loopwright generate`: text from a prompt."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from loopwright.checkpoints.source import Source
from loopwright.cli.console import console
from loopwright.cli.opening import find_device, find_dtype, open_model, open_tokenizer, probed, tell_wait
from loopwright.generation.constraints import ConstrainedVocabulary, parse_constraint
from loopwright.generation.exit_rules import parse_exit
from loopwright.generation.generation_config import end_tokens, settled
from loopwright.generation.readings import StepGuess, next_token_by_depth
from loopwright.generation.sampling import Sampling, checked_seed
from loopwright.generation.stream import encode, encode_chat, stream, stream_mixed
from loopwright.process import fitting_threads, say, stream_out
from loopwright.schema import check_whole


def generate(
    source: str,
    prompt: str,
    *,
    depth: int | None = None,
    max_new_tokens: int | None = None,
    sampling: Sampling | None = None,
    seed: int | None = None,
    state_seed: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    chat: bool = False,
    show_depth: bool = False,
    exit: str | None = None,
    draft_depth: int | str | None = None,
    tokenizer: str | None = None,
    constrain: str | None = None,
) -> dict[str, Any]:
    """Streams what a model says after a prompt, then prints one line of statistics on stderr. Returns the same as data."""
    where, kind = find_device(device), find_dtype(dtype)
    opened = Source(source)
    opened.need_weights("generate")
    if max_new_tokens is not None:
        check_whole("max_new_tokens", max_new_tokens, 0)
    # what can be wrong is found before the weights are read
    opened.config.check_depth(depth)
    rule = None if exit is None else parse_exit(exit)
    form = None if constrain is None else parse_constraint(constrain)
    words = open_tokenizer(opened, tokenizer)
    if chat:
        probed(source, words).close()
    if form is not None:
        vocabulary = ConstrainedVocabulary(words, opened.config.vocab_size)
        vocabulary.constraint(form)
    model = open_model(opened, kind, where)
    if seed is not None and not settled(model, sampling or Sampling()).draws:
        raise ValueError(f"seed: {seed} would change nothing; nothing is drawn without a temperature, top_p, top_k or min_p")
    if state_seed is not None:
        checked_seed(model, state_seed)
    ids = (encode_chat if chat else encode)(words, prompt, model.config.vocab_size).to(model.device)
    told: dict[str, Any] = {}
    with fitting_threads(model):
        tell_wait(model, depth, length=ids.shape[1])
        if show_depth:
            guesses = next_token_by_depth(model, ids, depth, state_seed=state_seed)
            console().print(_guess_table(guesses, words))
            told["by_depth"] = [{**vars(one), "tokens": [words.decode([token]) for token in one.tokens]} for one in guesses]
        if max_new_tokens != 0:
            pieces: list[str] = []

            def write(text: str) -> None:
                pieces.append(text)
                stream_out(text)

            options: dict[str, Any] = {
                "write": write, "max_new_tokens": max_new_tokens, "depth": depth, "sampling": sampling, "seed": seed,
                "state_seed": state_seed,
            }  # fmt: skip
            saved = None
            if rule is None and draft_depth is None:
                limit = None if form is None else vocabulary.constraint(form, end_tokens(model, words))
                statistics = stream(model, words, ids, **options, constraint=limit)
            else:
                statistics, saved = stream_mixed(model, words, ids, **options, exit=rule, draft_depth=draft_depth, constrain=form)
            print(flush=True)
            if saved is not None:
                say(f"[{saved}]")
            say(f"[{statistics}]")
            if words.init_kwargs.get("reading"):  # a task's own tokenizer: answers may be written in an order of their own
                say(f"[{words.init_kwargs['reading']}]")
            told |= {"text": "".join(pieces), **vars(statistics)}
    return told


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
        table.add_row(str(guess.step), *cells, f"{guess.entropy:.3f}", f"{guess.divergence:z.3f}")  # z: no -0.000
    return table
