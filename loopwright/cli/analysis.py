"""`loopwright analyze`: look inside a model on some prompts; numbers, figures and a page."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loopwright.analysis.report.analysis import write_analysis
from loopwright.analysis.report.findings import Finding, converges, safe, stages
from loopwright.analysis.report.page import Slider, count
from loopwright.analysis.study import Prompt, Subject, drawn, fitting_batch, read_prompts, study, trace_bytes
from loopwright.analysis.summary import PUBLISHED, LimitOptions
from loopwright.analysis.trace.edit import ablate_massive
from loopwright.analysis.trace.record import OutOfMemory, is_full
from loopwright.analysis.trace.single_prompt import PAIR_PROMPTS, PAIR_STEPS, pair_bytes, path_bytes
from loopwright.analysis.trace.trace import check_lengths, trace_depth
from loopwright.checkpoints.source import Source
from loopwright.cli.console import console, progress
from loopwright.cli.opening import find_device, find_dtype, open_model, open_tokenizer, system_text, tell_wait
from loopwright.cli.results import how_made, need_writable
from loopwright.confined import token_ids
from loopwright.data.build import build_data
from loopwright.generation.sampling import check_seeded
from loopwright.metrics.score import IGNORED
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.parts.state import started_at
from loopwright.model.room import free_bytes
from loopwright.process import fitting_threads
from loopwright.schema import check_whole
from loopwright.storage.files import write_json
from loopwright.storage.run import RunFolder

VALID = "valid"  # the prompts of a run folder that are its own validation rows
SHOWN_PROMPTS, LONGEST_PROMPT = 8, 120  # on the page; and letters of each


@dataclass(frozen=True)
class PromptOptions:
    """What the prompts are, how many of them, and the tokenizer of text where the model has none; the system prompt before each (a
    text or a .txt file), which `padded` replaces by as many padding tokens."""

    prompts: str
    data: str | None = None
    examples: int | None = None
    seed: int = 0
    tokenizer: str | None = None
    system: str | None = None
    padded: bool = False


@dataclass(frozen=True)
class AnalysisPlan:
    """How much is done at once, and where: prompts of a pass, steps whose pairs are compared, the device, the numbers' type."""

    batch: int
    pairs: int
    device: str
    dtype: torch.dtype


def analyze(
    source: str,
    options: PromptOptions,
    *,
    depth: int | None = None,
    compare: str | None = None,
    batch: int = 8,
    pairs: int = PAIR_STEPS,
    ablate: bool = False,
    limits: LimitOptions = PUBLISHED,
    state_seed: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    out: str | None = None,
) -> Path:
    """Traces a model (and a dense one to compare with) over prompts, saves numbers and figures, and returns the page."""
    where, kind = find_device(device), find_dtype(dtype)
    check_whole("batch", batch, 1)
    check_whole("pairs", pairs, 0)
    # what can be wrong is found before weights are read
    opened, other = Source(source), None if compare is None else Source(compare)
    opened.need_weights("analyze")
    if other is not None:
        other.need_weights("compare")
    opened.config.check_depth(depth)
    if state_seed is not None:
        check_seeded(opened.config, "state_seed", state_seed)
    if other is not None and other.config.is_looped:
        raise ValueError(f"compare: {compare} is looped; allowed: a dense model, whose layers run once")
    prompts = read_own(opened, options) if options.prompts == VALID else read_given(options)
    run, plan = RunFolder(out or f"runs/analyze-{Path(source).name}"), AnalysisPlan(batch, pairs, where, kind)
    run.check_out("analyze")
    need_writable("analyze", run.traces, run.metrics, run.figures)
    # a compared model is looked at hours before its turn
    opening = opening_of(opened, options)
    limits = replace(limits, skip=len(opening))
    rows = [rows_of(opened, prompts, tokenizer=options.tokenizer, opening=opening)]
    rows.append([] if other is None else rows_of(other, prompts, "the compared model", opening=opening_of(other, options)))
    check_memory(opened, rows[0], plan, depth)
    if other is not None:
        check_memory(other, rows[1], plan, None)
    summary = _study(opened, rows[0], run.traces, plan, depth, ablate, limits, state_seed)
    run.metrics.mkdir(parents=True, exist_ok=True)
    write_json(run.metrics / "analysis.json", summary)
    dense, drawn_from = None, f"{run.metrics.name}/analysis.json"
    if other is not None:
        dense = _study(other, rows[1], run.path / "traces-dense", plan, None, False)
        write_json(run.metrics / "analysis-dense.json", dense)
        drawn_from += " and analysis-dense.json"
    _tell(summary, dense)
    words = _reader(opened, options.tokenizer)
    page = write_analysis(
        summary, run.path,
        dense=dense, footer=f"Drawn from {drawn_from}.", said=said_by_depth(summary, prompts, words), made=_made(prompts, words),
    )  # fmt: skip
    console().print(f"numbers: {run.metrics}\nfigures: {run.figures}\nreport: {page}", markup=False, soft_wrap=True)
    return page


def said_by_depth(found: dict[str, Any], prompts: Sequence[Prompt], words: Any) -> Slider | None:
    """Returns what the first prompts would be answered at each depth, as a slider; None where nothing can be read or moved."""
    tokens = found.get("answers", {}).get("tokens")
    if not tokens or words is None:
        return None
    steps = len(tokens[0])
    usual = min(found["answers"].get("depth") or steps, steps)
    cells = [[(_word(words, each[t]), each[t] == each[usual - 1]) for each in tokens] for t in range(steps)]
    names = [_end(prompt if isinstance(prompt, str) else words.decode(prompt)) for prompt in prompts[: len(tokens)]]
    return Slider(
        ["prompt", "next token"], names, range(1, steps + 1), cells, usual - 1, f"First shown: the model's own depth, {usual}."
    )


def _reader(source: Source, tokenizer: str | None) -> Any:
    """The tokenizer that tokens are read with; None where a model of plain ids has none."""
    try:
        return open_tokenizer(source, tokenizer)
    except FileNotFoundError:
        return None


def _word(words: Any, token: int) -> str:
    text = words.decode([token])
    return text if text.strip() and text.isprintable() else repr(words.convert_ids_to_tokens(token))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_PROMPT else f"{line[:LONGEST_PROMPT].rstrip()} …"


def _end(text: str) -> str:
    """The end of a prompt, after which something is said."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_PROMPT else f"… {line[-LONGEST_PROMPT:].lstrip()}"


def _made(prompts: Sequence[Prompt], words: Any) -> list[tuple[str, str]]:
    """Says how the page came to be: its command, version, date and prompts."""
    read = [prompt if isinstance(prompt, str) else words.decode(prompt) if words else "token ids" for prompt in prompts]
    shown = " · ".join(_short(prompt) for prompt in read[:SHOWN_PROMPTS])
    more = f" · and {len(read) - SHOWN_PROMPTS} more" if len(read) > SHOWN_PROMPTS else ""
    return [*how_made(), ("prompts", shown + more)]


def read_given(options: PromptOptions) -> list[Prompt]:
    """Returns the prompts of a file, a set or a text, at most as many as were asked for."""
    prompts = read_prompts(options.prompts, data=options.data)
    return [prompts[i] for i in _choose(len(prompts), options)]


def _choose(total: int, options: PromptOptions) -> list[int]:
    chosen = drawn(total, options.examples, options.seed)
    if len(chosen) < total:
        console().print(f"prompts: {len(chosen)} of {total:,}, drawn by seed {options.seed} (--examples takes more)", markup=False)
    return chosen


def read_own(source: Source, options: PromptOptions) -> list[Prompt]:
    """Returns validation rows of a run folder as token ids, without their padding and their answers."""
    if source.run is None or source.recipe is None or "data" not in source.recipe:
        raise ValueError(
            f"prompts: {source.name} holds no run (no recipe.yaml with data), so no validation rows; give a file, a set or a text"
        )
    splits = build_data(source.recipe["data"], source.run.data)
    batch = splits.valid.batch(_choose(len(splits.valid), options))
    rows = [(ids[real], labels[real]) for ids, labels, real in zip(batch.input_ids, batch.labels, batch.valid, strict=True)]
    return [ids.tolist() for ids, _ in rows] if splits.in_place else questions(rows)


def questions(rows: Sequence[tuple[Tensor, Tensor]]) -> list[Prompt]:
    """Returns the tokens of each row (ids, labels) before its answer, and what all answers begin with: what is said after an
    answer, or in every one, says nothing. Text that is predicted from its start is a prompt as a whole."""
    ids, first = [row.tolist() for row, _ in rows], [int((labels != IGNORED).int().argmax()) for _, labels in rows]
    if min(first) < 2:
        return list(ids)
    answers = [row[start:-1] for row, start in zip(ids, first, strict=True)]  # a token is left to say
    together = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*answers, strict=False))
    alike = len(list(together)) if len(rows) > 1 else 0
    return [row[: start + alike] for row, start in zip(ids, first, strict=True)]


def opening_of(source: Source, options: PromptOptions) -> list[int]:
    """Returns the tokens of the system prompt, with what the tokenizer opens any text with; none where none is asked for."""
    if options.system is None:
        if options.padded:
            raise ValueError("pad-system: there is no system prompt to pad; give --system TEXT")
        return []
    text = system_text(options.system)
    words: Any = open_tokenizer(source, options.tokenizer)
    ids = token_ids(words, f"{text.rstrip()}\n\n")
    if not options.padded:
        return ids
    pad = words.eos_token_id if words.pad_token_id is None else words.pad_token_id
    return [i if i == words.bos_token_id else pad for i in ids]


def rows_of(
    source: Source,
    prompts: Sequence[Prompt],
    whose: str = "the model",
    *,
    tokenizer: str | None = None,
    opening: Sequence[int] = (),
) -> list[list[int]]:
    """Returns prompts in the tokens of a model, or of the tokenizer that is given. What the model cannot take is refused."""
    if opening and not all(isinstance(prompt, str) for prompt in prompts):
        raise ValueError("system: the prompts are token ids, which hold all that the model reads; give prompts as text")
    words: Any = open_tokenizer(source, tokenizer) if any(isinstance(prompt, str) for prompt in prompts) else None
    if opening:
        rows = [[*opening, *words(prompt, add_special_tokens=False).input_ids] for prompt in prompts]
    else:
        rows = [token_ids(words, prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
    check_lengths(source.config, rows, whose)
    return rows


def _study(
    source: Source, rows: Sequence[Sequence[int]], folder: Path, plan: AnalysisPlan, depth: int | None, ablate: bool,
    limits: LimitOptions = PUBLISHED,
    state_seed: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    subject = Subject(source.path.name, _open(source, plan), rows)
    model = subject.model
    edit, edited = (ablate_massive(model.config), "MLP output of the second layer zeroed") if ablate else (None, "")
    start = nullcontext() if state_seed is None else started_at(model.state, state_seed)
    with fitting_threads(model), progress() as bar, start:
        task = bar.add_task(subject.name)

        def tell(what: str, done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description=f"{subject.name}: {what}")

        steps = depth if model.config.is_looped else None
        tell_wait(model, steps, rows=min(plan.batch, len(rows)), length=max(map(len, rows)))
        return study(
            subject, folder,
            depth=steps, batch=plan.batch, pairs=plan.pairs, edit=edit, edited=edited, limits=limits, progress=tell,
        )  # fmt: skip


def _open(source: Source, plan: AnalysisPlan) -> LoopedForCausalLM:
    try:
        return open_model(source, plan.dtype, plan.device)
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and not is_full(error):
            raise
        raise OutOfMemory(
            f"{source.name}: out of memory while its weights are read; nothing was computed yet; take another device"
        ) from None


def check_memory(source: Source, prompts: Sequence[Sequence[int]], plan: AnalysisPlan, depth: int | None) -> None:
    """Says what the analysis of a model will hold, its weights included, and refuses what does not fit, with what would."""
    config, length = source.config, max(map(len, prompts))
    steps, rows = trace_depth(config, depth), min(plan.batch, len(prompts))
    parts = trace_bytes(config, batch=rows, length=length, depth=steps, dtype=plan.dtype)
    words = ", ".join(f"{name} {_mebi(size)}" for name, size in parts.items())
    what = f"{source.path.name}: {count(len(prompts), 'prompt')} of up to {count(length, 'token')}, {count(steps, 'step')}"
    console().print(what, markup=False)
    console().print(f"memory at batch {rows}: about {_mebi(sum(parts.values()))} MiB ({words})", markup=False)
    longest = max(map(len, prompts[:PAIR_PROMPTS]))
    shown = min(plan.pairs, steps)

    def pairs(n: int) -> int:
        return pair_bytes(config, longest, steps=n, dtype=plan.dtype) if n else 0

    path = path_bytes(config, len(prompts[0]), steps)
    close = {f"all pairs of layers over {count(shown, 'step')}": pairs(shown), "its path": path}
    said = ", ".join(f"{name} {_mebi(size)} MiB" for name, size in close.items() if size)
    if said:
        console().print(f"then, of one prompt at a time: {said}", markup=False)
    free = free_bytes(plan.device)
    if free is None:
        return
    if parts["weights"] > free:
        raise ValueError(
            f"{source.name}: its weights take about {_mebi(parts['weights'])} MiB, {_mebi(free)} are free; take another device"
        )
    free -= parts["weights"]
    fits = fitting_batch(config, batch=rows, length=length, depth=steps, dtype=plan.dtype, free=free)
    if fits < rows:
        advice = f"--batch {fits} would fit" if fits else "not even --batch 1 would fit: take shorter prompts"
        raise ValueError(
            f"batch: {rows} needs about {_mebi(sum(parts.values()))} MiB, {_mebi(free + parts['weights'])} are free; {advice}"
        )
    if pairs(shown) > free:
        most = next(n for n in range(shown, -1, -1) if pairs(n) <= free)
        raise ValueError(
            f"pairs: {count(shown, 'step')} would need about {_mebi(pairs(shown))} MiB, {_mebi(free)} are free beside the weights; "
            f"--pairs {most} would fit"
        )


def _mebi(size: int) -> str:
    return f"{size / 2**20:,.0f}"


def _tell(found: dict[str, Any], dense: dict[str, Any] | None) -> None:
    def line(question: str, finding: Finding) -> None:
        console().print(f"{question} {finding.sentence}", markup=False)

    if found["places"]["core"]:
        line("Does it converge, and to what?", converges(found))
    line("Are its stages those of a feedforward model?" if found["places"]["core"] else "Its stages:", stages(found, dense))
    if found["places"]["core"]:
        line("Is more depth safe?", safe(found))
