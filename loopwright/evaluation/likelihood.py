"""Whether the loss of a model is a likelihood: what must be known before a number of its answers is told."""

from __future__ import annotations

from loopwright.checking.conformance import check
from loopwright.checking.probes import Verdict
from loopwright.model.causal_lm import LoopedForCausalLM

NOT_A_LIKELIHOOD = "not a likelihood: sees the future"


def causality_of(model: LoopedForCausalLM, name: str = "the model") -> Verdict:
    """Returns what the causality check finds in a model: what must be known before a loss of it is told.

    Raises a ValueError where the logits are not finite: what is no number can be compared with nothing.
    """
    finite, causal = check(model, names=("finite logits", "causality")).rows
    if finite.passed is False:
        raise ValueError(f"evaluate: {name} has no loss, since its logits are not finite ({finite.detail})")
    return Verdict(causal.passed, causal.detail)


def need_likelihood(
    model: LoopedForCausalLM, name: str = "the model", *, marked: bool = False, known: Verdict | None = None
) -> Verdict:
    """Returns the verdict on causality; refuses a model that failed it unless its losses are to be `marked`.

    `known` is the verdict where it has been asked for already.
    """
    verdict = causality_of(model, name) if known is None else known
    if verdict.passed is not True and not marked:
        raise ValueError(
            f"evaluate: {name} is not causal, so its loss is {NOT_A_LIKELIHOOD} ({verdict.detail}); allowed: a text (--text, text=)"
            " with --teacher-forced, teacher_forced=True (scored and marked), or with --honest N, honest=N (from prefixes alone)"
        )
    return verdict
