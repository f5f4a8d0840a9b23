"""`loopwright evaluate` in four forms: the splits of a run, texts, early exits, tasks. Options of one do not go with another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loopwright.commands.evaluation import evaluate as verb
from loopwright.commands.results import rows_by_depth

Options = Mapping[str, Any]


def evaluate_as(
    source: str,
    shared: Options,
    *,
    splits: Options,
    text: Options,
    exits: Options,
    tasks: Options,
    tokenizer: str | None,
    state_seeds: int | None = None,
) -> Any:
    """Runs the form that the options ask for, and returns its results as data.

    Args:
        shared: options of every form.
        splits, text, exits, tasks: those of one form, by name.
    """
    texts: Sequence[str] = text["texts"]
    words: Options = {"tokenizer": tokenizer}
    of_text = {name: value for name, value in text.items() if value not in (None, False, 0, [])}
    of_splits = {name: value for name, value in splits.items() if value not in (None, True, [])}
    if tasks["tasks"] is not None:
        if of_text or of_splits or exits["exits"] or exits["timed"] or state_seeds is not None:
            raise ValueError(
                "evaluate: --tasks with options of texts, splits, starts or exits; allowed: one of --tasks, --text, --exit, --data"
            )
        from loopwright.commands.evaluation.tasks import evaluate_tasks, rows_of_tasks

        return rows_of_tasks(evaluate_tasks(source, **tasks, **words, **shared))
    if any(value is not None and value is not False for value in tasks.values()):  # no examples at all are asked for, too
        raise ValueError(
            "evaluate: --task-data, --shots, --chat, --system and --max-new-tokens belong to --tasks, which is not given"
        )
    if texts and of_splits:
        raise ValueError("evaluate: --text with --split, --data or --no-decode; allowed: texts, or the splits of a recipe's data")
    if not texts and (of_text or tokenizer is not None):
        raise ValueError(
            "evaluate: --context, --field, --teacher-forced, --honest and --tokenizer belong to --text, which is not given"
        )
    if state_seeds is not None:
        if exits["exits"] or text["teacher_forced"] or text["honest"] or text["field"]:
            raise ValueError("evaluate: --state-seeds with --exit, --teacher-forced, --honest or --field; leave them out")
        from loopwright.commands.evaluation.starts import evaluate_starts

        data = {"splits": splits["splits"], "data": splits["data"]}
        return rows_by_depth(evaluate_starts(source, state_seeds, texts=texts, context=text["context"], **data, **words, **shared))
    if exits["timed"] and not exits["exits"]:
        raise ValueError("evaluate: --time belongs to --exit, which is not given")
    reading = {**words, "context": text["context"], "field": verb.FIELD if text["field"] is None else text["field"]}
    if exits["exits"]:
        if text["teacher_forced"] or text["honest"] or not splits["decode"]:
            raise ValueError("evaluate: --teacher-forced, --honest and --no-decode do not go with --exit; leave them out")
        from loopwright.commands.evaluation.exits import evaluate_exits

        data = {"splits": splits["splits"], "data": splits["data"]}
        return evaluate_exits(source, **exits, texts=texts, **data, **reading, **shared)
    if texts:
        scored = {"teacher_forced": text["teacher_forced"], "honest": text["honest"]}
        return rows_by_depth(verb.evaluate_text(source, texts, **reading, **scored, **shared))
    return rows_by_depth(verb.evaluate(source, **splits, **shared))
