"""lm-eval's tasks at every depth: answers to choose from are scored at all depths in one pass, the engine generates the others.

The model is lm-eval's own `hf` model in all but what runs the network: prompts, tokens, cuts and metrics are lm-eval's. So the
numbers are those of `hf` at each depth.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import warnings
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loopwright.checking.probes import Verdict
from loopwright.evaluation.likelihood import need_likelihood
from loopwright.evaluation.report import Progress
from loopwright.evaluation.tasks import OWN, Asking, TaskNames, TaskReport, known_names, local_config, task_report
from loopwright.generation.engine import Engine
from loopwright.generation.readings import check_depths
from loopwright.metrics.score import chosen, wide
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.passes import Answers
from loopwright.schema import check_whole
from loopwright.untrusted import visible

TOKENS_AT_ONCE = {"cpu": 2**11, "cuda": 2**16}  # of a pass, padding included, where nothing is said
LOGITS_AT_ONCE = {"cpu": 2**25, "cuda": 2**29}

Pair = tuple[Sequence[int], Sequence[int]]  # context, continuation
Row = tuple[int, ...]


def score_continuations(
    model: LoopedForCausalLM,
    pairs: Sequence[Pair],
    depths: Sequence[int],
    *,
    longest: int | None = None,
    batch: int | None = None,
    progress: Progress | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns log p(continuation | context) [pairs, depths] in float64, and whether each of its tokens is the likeliest one.

    A row is context and continuation without the last token, cut on the left to `longest` tokens (the model's positions). Rows
    that several pairs share, such as those of answers of one token, are run once.

    Args:
        batch: rows in a pass; default: what fits.
    """
    wanted = check_depths(model.config, depths)
    if model.training:
        raise ValueError("score_continuations: the model is in training mode, where dropout is on; call model.eval() first")
    if batch is not None:
        check_whole("batch", batch, 1)
    owners = _rows(pairs, model.config.max_position_embeddings if longest is None else longest)
    order = sorted(owners, key=lambda row: (-len(row), row))  # rows of like length together, the most memory first
    scores = torch.zeros(len(pairs), len(wanted), dtype=torch.float64)
    greedy = torch.zeros(len(pairs), len(wanted), dtype=torch.bool)
    room = TOKENS_AT_ONCE.get(model.device.type, TOKENS_AT_ONCE["cpu"])
    first = 0
    while first < len(order):
        rows = order[first : first + (batch or max(1, room // len(order[first])))]
        first += len(rows)
        places = [place for row in rows for place in owners[row]]
        scores[places], greedy[places] = _score(model, rows, [[pairs[place][1] for place in owners[row]] for row in rows], wanted)
        if progress is not None:
            progress(first, len(order))
    return scores, greedy


def _rows(pairs: Sequence[Pair], longest: int) -> dict[Row, list[int]]:
    """Returns the pairs of each distinct row by their places."""
    owners: dict[Row, list[int]] = {}
    for place, (context, continuation) in enumerate(pairs):
        if not context or not 1 <= len(continuation) <= longest:
            raise ValueError(
                f"pair {place}: {len(context)} tokens of context and {len(continuation)} to score; "
                f"allowed: at least one of each, and at most {longest} to score"
            )
        owners.setdefault((*context, *continuation)[-longest - 1 : -1], []).append(place)
    return owners


@torch.no_grad()
def _score(
    model: LoopedForCausalLM, rows: Sequence[Row], answers: Sequence[Sequence[Sequence[int]]], depths: list[int]
) -> tuple[Tensor, Tensor]:
    """Returns scores and greediness of the answers of some rows, in order, from one pass."""
    width = len(rows[0])
    # what stands behind a row cannot change what stands before it
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=model.device)
    at: list[tuple[int, int]] = []  # row and position that the head reads
    asked: list[tuple[int, int, int]] = []  # place in `at`, token, answer
    for number, (row, tokens) in enumerate(zip(rows, answers, strict=True)):
        end = len(at) + max(map(len, tokens))
        at += [(number, position) for position in range(len(row) + len(at) - end, len(row))]
        for answer, token in enumerate(tokens, start=sum(map(len, answers[:number]))):
            asked += [(end - len(token) + i, one, answer) for i, one in enumerate(token)]
    asked.sort()
    count = sum(map(len, answers))
    scores = torch.zeros(count, len(depths), dtype=torch.float64)
    misses = torch.zeros(count, len(depths), dtype=torch.long)
    where, token, answer = torch.tensor(asked).T
    picked = torch.tensor(at, device=model.device).T
    e, p = model.embed(ids)
    column, start = 0, model.start_state(e, p)
    answered = Answers(model, e, p, start)
    for depth, s in enumerate(model.unroll(e, depths[-1], p, state=start), start=1):
        answered.take(s)
        if depth == depths[column]:
            # the head is most of a small model, and only tokens of answers need it
            each, right = _read(model, answered.features()[picked[0], picked[1]], p, where.tolist(), token.to(model.device))
            scores[:, column].index_add_(0, answer, each)
            misses[:, column].index_add_(0, answer, (~right).long())
            column += 1
    return scores, misses == 0


def _read(model: LoopedForCausalLM, features: Tensor, p: object, where: list[int], token: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the log-probability of each token asked for, and whether it is the likeliest one at its place, on the CPU."""
    room = LOGITS_AT_ONCE.get(model.device.type, LOGITS_AT_ONCE["cpu"])
    size = max(1, room // model.config.vocab_size)
    each, right = [], []
    for first in range(0, len(features), size):
        logits = model.head(features[first : first + size], p)  # type: ignore[arg-type]
        logs = wide(logits).log_softmax(-1)
        begin, end = bisect_left(where, first), bisect_left(where, first + size)
        places = torch.tensor(where[begin:end], device=features.device) - first
        scores = logs[places, token[begin:end]]
        each.append(scores.double().cpu())
        right.append((chosen(logs)[places] == token[begin:end]).cpu())
    return torch.cat(each), torch.cat(right)


ROWS = 8  # that generate at a time, where nothing is said
SEED = 1234  # by which lm-eval draws examples
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def need_lm_eval() -> None:
    """Raises a ValueError in one line where lm-eval is not installed."""
    if find_spec("lm_eval") is None:
        raise ValueError("tasks: lm-eval is not installed; pip install 'loopwright[eval]'")


def evaluate_tasks(
    model: LoopedForCausalLM,
    tokenizer: Any,
    tasks: Sequence[str],
    depths: Sequence[int] | None = None,
    *,
    folder: str | Path | None = None,
    shots: int | None = None,
    limit: int | None = None,
    batch: int | None = None,
    asking: Asking | None = None,
    causality: Verdict | None = None,
    source: str = "",
    progress: Progress | None = None,
) -> dict[str, TaskReport]:
    """Returns the report of each task at each depth; the numbers are those of lm-eval's `hf` model at that depth.

    Args:
        tasks: names of lm-eval, its tags and groups too, or of task files (.yaml) in the folder.
        folder: where the questions stand as JSON lines, see task_files.py; default: the hub.
        shots: examples before each question; default: the task's own number.
        limit: only the first questions of each task.
        batch: rows in a pass, and requests at a time where answers are generated.
        asking: chat template, system message and length of answers; default: questions as they stand.
        causality: what `need_likelihood` found, where it has been asked already; else it is asked here.
    """
    need_lm_eval()
    asking = asking or Asking()
    need_template(tokenizer, asking)
    wanted = check_depths(model.config, depths)
    need_likelihood(model, known=causality)
    with _quiet():
        loaded, origin = _load(tasks, folder, shots)
        for name, task in loaded["tasks"].items():
            _need_answers(name, task, limit)
        _need_fit(loaded["tasks"], asking)
        with _errors_alone():  # lm-eval doubts models that are given as objects
            harness = _harness(model, tokenizer, wanted, batch, asking, progress)
        results = [_results(harness, loaded, limit, place) for place in range(len(wanted))]
    reports = {}
    for name, task in loaded["tasks"].items():
        values, answers = _numbers(name, results)
        if values:
            reports[name] = task_report(
                name, wanted, values, answers,
                shots=task.get_config("num_fewshot") or 0, data=origin.get(name, str(task.DATASET_PATH)), source=source,
                dtype=str(model.dtype).removeprefix("torch."), cut=len(harness.cut.get(name, ())),
                chat=asking.chat, system=asking.system, max_new_tokens=asking.max_new_tokens,
            )  # fmt: skip
    if not reports:
        raise ValueError(f"tasks: {', '.join(tasks)} gave no metric that is a number; nothing can be reported")
    return reports


def need_template(tokenizer: Any, asking: Asking) -> None:
    """Raises a ValueError in one line where a chat is asked for that the tokenizer's template cannot write."""
    if not asking.chat:
        return
    if tokenizer.chat_template is None:
        raise ValueError("chat: the tokenizer has no chat template; leave --chat out, or use an instruct model's folder")
    said = [] if asking.system is None else [{"role": "system", "content": asking.system}]
    written = _written(tokenizer, [*said, {"role": "user", "content": "1"}])
    if asking.system is not None and asking.system.strip() not in written:
        raise ValueError("system: the tokenizer's chat template leaves system messages out; leave --system out")


def _written(tokenizer: Any, messages: list[dict[str, str]], *, opens: bool = True) -> str:
    """Returns a conversation in the template; `opens`: with the opening of the answer, else its last message goes on."""
    try:
        return tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=opens, continue_final_message=not opens
        )
    except Exception as error:  # a template is a program of the folder: it raises what it likes
        roles = ", ".join(message["role"] for message in messages)
        raise ValueError(f"chat: the tokenizer's chat template refuses messages of {roles} ({_line(error)})") from None


# the tasks


def check_names(names: Sequence[str], folder: str | Path | None) -> TaskNames:
    """Raises a ValueError in one line for a task that neither lm-eval nor the folder has; returns the names that they have."""
    if not names:
        raise ValueError("tasks: none are given; name some, such as arc_easy,hellaswag")
    if folder is not None and not Path(folder).is_dir():
        raise ValueError(f"task-data: {folder} is not a folder; give one with files such as {names[0]}_test.jsonl")
    known = known_names(folder)
    known.check(names, tuple(OWN) if folder is not None else ())
    return known


def _load(names: Sequence[str], folder: str | Path | None, shots: int | None) -> tuple[Any, dict[str, str]]:
    """Returns lm-eval's tasks, and where the questions of each came from where that is a file."""
    known, own = check_names(names, folder), tuple(OWN) if folder is not None else ()
    manager = _asked(names, folder, lambda: _manager(names, known, folder, own))
    for name in names:  # a word in a file need not be a name of lm-eval
        if name not in own and name not in manager.all_tasks:
            raise ValueError(f"tasks: unknown {name!r}; `lm-eval ls tasks` lists them")
    origin: dict[str, str] = {}
    specs: list[Any] = []
    for name in names:
        specs += [name] if folder is None else _asked(names, folder, partial(_local, manager, name, Path(folder), shots, origin))
    loaded = _asked(names, folder, lambda: manager.load(specs))
    for name, task in loaded["tasks"].items():
        if shots is not None and task.get_config("num_fewshot") != 0:  # a task that says 0 means it, as in lm-eval
            task.set_config(key="num_fewshot", value=shots)
        elif shots:
            warnings.warn(f"{name} is always asked without examples, so shots={shots} changes nothing there", stacklevel=2)
        elif task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
    return loaded, origin


def _asked(names: Sequence[str], folder: str | Path | None, work: Callable[[], Any]) -> Any:
    """Returns what lm-eval gives; its files, datasets, the hub client and a task's own code fail in classes of their own."""
    try:
        return work()
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith(("tasks: ", "task-data: ")):
            raise
        where = "give --task-data FOLDER with its questions" if folder is None else f"its files stand in {folder}"
        raise ValueError(f"tasks: {', '.join(names)} cannot be loaded ({_line(error)}); {where}") from None


def _manager(names: Sequence[str], known: TaskNames, folder: str | Path | None, own: Sequence[str] = ()) -> Any:
    """Returns lm-eval's index of tasks: of the few folders that hold these where all are single tasks, or the whole.

    `own` are tasks that need no file.
    """
    from lm_eval import tasks

    more = [] if folder is None else [Path(folder)]
    places = {*more, *(place for name in names for place in known.tasks.get(name, ()))}
    # lm-eval looks below each, and warns of every task that it finds a second time
    apart = [place for place in places if not any(parent in places for parent in place.parents)]
    found = [str(place) for place in sorted(apart, key=lambda place: (place in more, place))]  # one's own last: the last counts
    manager = tasks.TaskManager(include_path=found, include_defaults=False)
    kinds = {name: entry.kind.name for name, entry in manager.task_index.items()}
    if all(kinds.get(name, "TASK" if name in own else "") == "TASK" for name in names):
        return manager
    return tasks.TaskManager(include_path=[str(place) for place in more])


def _local(manager: Any, name: str, folder: Path, shots: int | None, origin: dict[str, str]) -> list[Any]:
    """Returns the configs behind a name, with their data from the folder; one that a file of the folder gives whole is kept."""
    from lm_eval.tasks._yaml_loader import load_yaml

    entry = manager.task_index.get(name)
    if entry is not None and entry.kind.name == "TAG":
        return [spec for task in sorted(entry.tags) for spec in _local(manager, task, folder, shots, origin)]
    if entry is not None and entry.kind.name != "TASK":
        raise ValueError(f"tasks: {name} is no single task, so its files cannot be found; name its tasks, or leave --task-data out")
    config: dict[str, Any] = {} if entry is None else load_yaml(entry.yaml_path, resolve_func=True)
    own = entry is not None and Path(entry.yaml_path).resolve().is_relative_to(folder.resolve())
    if own and "dataset_path" in config:
        return [name]
    config = {**config, **({} if own else OWN.get(name, {}))}
    config.pop("tag", None)
    chosen, path = local_config(folder, config, shots)
    origin[name] = path.name
    return [chosen]


def _need_answers(name: str, task: Any, limit: int | None) -> None:
    """Raises a ValueError in one line where a question has no answer: lm-eval would count it as wrong, or stop in the middle."""
    kind = task.OUTPUT_TYPE
    if kind == "loglikelihood_rolling" or (kind != "multiple_choice" and getattr(task.config, "process_results", None)):
        return
    for number, doc in task.doc_iterator(limit=limit):
        try:
            target = task.doc_to_target(doc)
            choices = task.doc_to_choice(doc) if kind == "multiple_choice" else []
        except Exception as error:  # of a template that finds no field, or of a function of the task
            raise ValueError(f"{name}: question {number} cannot be read ({_line(error)})") from None
        several = target if isinstance(target, list) else [target]
        bad = any(one is None or one == "" for one in several) or not several
        # answers to choose from are counted from 0; some tasks write the answer itself, and some ask the same of several texts
        if kind == "multiple_choice" and not task.multiple_input and not bad:
            bad = any(not 0 <= one < len(choices) if isinstance(one, int) else one not in choices for one in several)
        if bad:
            raise ValueError(f"{name}: question {number} has no answer (its target is {target!r}); allowed: a split with answers")


def _need_fit(tasks: Mapping[str, Any], asking: Asking) -> None:
    """Raises a ValueError in one line where no question could be put as asked."""
    whole = next((name for name, task in tasks.items() if task.OUTPUT_TYPE == "loglikelihood_rolling"), None)
    if asking.chat and whole is not None:
        raise ValueError(f"chat: {whole} measures whole texts, which are no conversation; leave --chat or the task out")
    if asking.max_new_tokens is not None and not any(task.OUTPUT_TYPE == "generate_until" for task in tasks.values()):
        raise ValueError(f"max_new_tokens: {', '.join(tasks)} ask for no answer that is written; leave --max-new-tokens out")


def _results(harness: Any, loaded: Any, limit: int | None, place: int) -> Any:
    """Returns what lm-eval makes of the answers at one depth."""
    import lm_eval

    harness.place = place
    for task in loaded["tasks"].values():
        task.set_fewshot_seed(seed=SEED)
    return lm_eval.evaluate(
        harness, loaded,
        limit=limit, log_samples=True, bootstrap_iters=0,
        system_instruction=harness.asking.system, apply_chat_template=harness.asking.chat, fewshot_as_multiturn=harness.asking.chat,
    )  # fmt: skip


def _numbers(task: str, found: Sequence[Any]) -> tuple[dict[str, list[float]], dict[str, list[list[Any]]]]:
    """Returns each metric of a task by depth, and what each question gave for it [depths, questions]."""
    values: dict[str, list[float]] = {}
    answers: dict[str, list[list[Any]]] = {}
    for key, first in found[0]["results"][task].items():
        metric, _, filtered = key.partition(",")
        if not filtered or metric.endswith("_stderr") or isinstance(first, bool) or not isinstance(first, int | float):
            continue
        name = metric if filtered == "none" else f"{metric} ({filtered})"
        rows = [{s["doc_id"]: s[metric] for s in r["samples"][task] if s["filter"] == filtered and metric in s} for r in found]
        if rows[0]:
            values[name] = [float(result["results"][task][key]) for result in found]
            answers[name] = [[row[number] for number in sorted(row)] for row in rows]
    return values, answers


# the model


def _harness(
    model: LoopedForCausalLM, tokenizer: Any, depths: list[int], batch: int | None, asking: Asking, progress: Progress | None
) -> Any:
    """Returns lm-eval's model of ours. It answers at the depth of its `place`; a request runs once, for all depths."""
    from lm_eval.models.huggingface import HFLM

    class AtDepths(HFLM):
        """`hf` with the passes replaced."""

        place = 0

        def __init__(self) -> None:
            # one batch for lm-eval: rows are sorted and cut into passes here; a template writes what opens a text itself
            opens = {"add_bos_token": False} if asking.chat else {}
            super().__init__(pretrained=model, tokenizer=tokenizer, batch_size=2**31, **opens)
            self.asking = asking
            self.known: dict[tuple[str, int], Sequence[Any]] = {}
            self.shortened: list[bool] = []  # of the requests that ran last, whether they lost tokens on the left
            self.long: set[tuple[str, int]] = set()
            self.cut: dict[str | None, set[int]] = {}  # questions by task

        def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
            """lm-eval's own leaves a system message out where the template refuses it."""
            return _written(tokenizer, chat_history, opens=add_generation_prompt)

        def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
            run = super().loglikelihood
            rows = self.answers(requests, lambda new: [list(zip(*pair, strict=True)) for pair in run(new, disable_tqdm=True)])
            return [(float(score), bool(greedy)) for score, greedy in rows]

        def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
            run = super().loglikelihood_rolling
            return [float(score) for score in self.answers(requests, lambda new: run(new, disable_tqdm=True))]

        def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = False, override_bs: int | None = None) -> list[Any]:
            pairs = [(context, continuation) for _, context, continuation in requests]
            self.shortened = [len(context) + len(continuation) - 1 > self.max_length for context, continuation in pairs]
            scores, greedy = score_continuations(model, pairs, depths, longest=self.max_length, batch=batch, progress=progress)
            # an array over depths is what lm-eval adds up over the windows of a text
            return list(zip(scores.numpy(), greedy.numpy(), strict=True))

        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
            return self.answers(requests, self.generated)

        def answers(self, requests: Sequence[Any], run: Callable[[list[Any]], Sequence[Any]]) -> list[Any]:
            """Returns what requests get at the depth of now; those that are new are run at all depths, each repeat on its own."""
            seen: Counter[str] = Counter()
            keys = []
            for request in requests:
                text = f"{request.request_type} {json.dumps(request.args, default=str)}"
                keys.append((text, seen[text]))
                seen[text] += 1
            new = [place for place, key in enumerate(keys) if key not in self.known]
            if new:
                self.known |= zip((keys[place] for place in new), run([requests[place] for place in new]), strict=True)
                self.long |= {keys[place] for place, long in zip(new, self.shortened, strict=False) if long}
            for request, key in zip(requests, keys, strict=True):
                if key in self.long:
                    self.cut.setdefault(request.task_name, set()).add(request.doc_id)
            return [self.known[key][self.place] for key in keys]

        def generated(self, requests: list[Any]) -> list[list[str]]:
            """Returns the answers of requests by depth, all in one engine."""
            return _answers(self, requests, model, tokenizer, depths, batch, progress)

    return AtDepths()


def _answers(
    harness: Any, requests: Sequence[Any], model: LoopedForCausalLM, tokenizer: Any, depths: Sequence[int], batch: int | None,
    progress: Progress | None,
) -> list[list[str]]:  # fmt: skip
    """Returns the answers of requests by depth, all in one engine; notes which prompts were cut."""
    from lm_eval.models.utils import postprocess_generated_text

    options, stops, harness.shortened = map(
        list, zip(*(_engine_options(harness, *request.args) for request in requests), strict=True)
    )
    room = max(len(wanted["prompt"]) + wanted["max_new_tokens"] for wanted in options)
    rows = min(batch or ROWS, len(options) * len(depths))
    looped = model.config.is_looped
    with Engine(model, tokenizer, max_rows=rows, max_tokens=rows * room, depth=depths[-1] if looped else None) as engine:
        handles = [
            [engine.submit(**wanted, seed=seed, depth=depth if looped else None) for seed, wanted in enumerate(options)]
            for depth in depths
        ]
        texts = []
        for done, row in enumerate(handles):
            texts.append([
                postprocess_generated_text(harness.tok_decode(handle.result().tokens), stop, None)
                for handle, stop in zip(row, stops, strict=True)
            ])  # fmt: skip
            if progress is not None:
                progress(done + 1, len(depths))
    return [list(answers) for answers in zip(*texts, strict=True)]


def _engine_options(harness: Any, context: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], bool]:
    """Returns a request of the engine that asks for what lm-eval's options do, the texts that end an answer, and whether the
    prompt was cut."""
    from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs

    asked = dict(normalize_gen_kwargs(dict(options), harness.max_gen_toks))
    eos = harness.tok_decode(harness.eot_token_id, skip_special_tokens=False)
    stop = handle_stop_sequences(asked.pop("until"), eos=eos)
    allowed_by_task, draws = asked.pop("max_gen_toks"), asked.pop("do_sample")
    new = harness.asking.max_new_tokens or allowed_by_task
    unknown = sorted(set(asked) - set(SAMPLING))
    if unknown:
        allowed = ", ".join(("until", "max_gen_toks", "do_sample", *SAMPLING))
        raise ValueError(f"tasks: generation_kwargs {', '.join(unknown)} are not offered; allowed: {allowed}")
    if new >= harness.max_length:
        raise ValueError(
            f"tasks: answers of up to {new} tokens do not fit into the {harness.max_length} positions of the model "
            "(max_position_embeddings)"
        )
    ids, room = harness.tok_batch_encode([context])[0][0].tolist(), harness.max_length - new
    vocabulary = harness.tokenizer.get_added_vocab()  # special tokens are no part of a decoded text
    ends = [vocabulary.get(term, term) for term in stop if term]
    sampling = {name: value for name, value in asked.items() if draws or name == "repetition_penalty"}
    return (
        {
            "prompt": ids[-room:],
            "max_new_tokens": new,
            "stop": ends,
            **({} if draws else {"temperature": 0.0}),
            **sampling,
        },
        stop,
        len(ids) > room,
    )


# what lm-eval says


class Remarks(logging.Handler):
    """Tells warnings on the stream that was stderr, each once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._stream, self._told = sys.stderr, set[str]()

    def emit(self, record: logging.LogRecord) -> None:
        """Tells one of lm-eval's."""
        self.tell(f"lm-eval: {record.getMessage()}")

    def show(self, message: Warning | str, category: type[Warning], *_: Any) -> None:
        """Tells one of Python's."""
        self.tell(str(message) if category is UserWarning else f"{category.__name__}: {message}")

    def tell(self, text: str) -> None:
        """Writes it as one line, where it was not yet written."""
        line = " ".join(text.split())
        if line not in self._told:
            self._told.add(line)
            print(visible(line), file=self._stream, flush=True)


@contextlib.contextmanager
def _errors_alone() -> Iterator[None]:
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps away the bars that lm-eval and datasets draw while they work, since the caller has its own. Warnings are told."""
    logger, remarks = logging.getLogger("lm_eval"), Remarks()
    before = logger.level, logger.handlers, logger.propagate
    logger.setLevel(logging.WARNING)
    logger.handlers, logger.propagate = [remarks], False
    try:
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.showwarning = remarks.show  # type: ignore[assignment]
            yield
    finally:
        logger.handlers, logger.propagate = before[1:]
        logger.setLevel(before[0])


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}…"
