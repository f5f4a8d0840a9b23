"""loopwright: build, convert, train, measure and serve looped language models.

The public names stand in `loopwright.public`, which is imported when one of them is asked for: help must not wait for torch.
"""

# ruff: noqa: F403, F405 (the star is for type checkers alone)
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loopwright.autoregister import autoregister
from loopwright.moved import keep_old_paths
from loopwright.version import VERSION

if TYPE_CHECKING:
    from loopwright.public import *

__version__ = VERSION
__all__ = [
    "CheckReport",
    "CheckRow",
    "Comparison",
    "Engine",
    "Evaluation",
    "LoopCache",
    "LoopedConfig",
    "LoopedForCausalLM",
    "LoopedForQuestionAnswering",
    "LoopedForSequenceClassification",
    "LoopedForTokenClassification",
    "LoopedModel",
    "LoopedModelOutput",
    "LoopedOutput",
    "Recipe",
    "Run",
    "Splits",
    "TokenRows",
    "Trace",
    "TraceSet",
    "at",
    "build",
    "check",
    "compare",
    "evaluate",
    "export",
    "figures",
    "load",
    "load_adapters",
    "load_trace",
    "merge",
    "metrics",
    "noise",
    "parts",
    "patch",
    "plot",
    "preset",
    "push",
    "register",
    "retrofit",
    "save",
    "save_adapters",
    "save_trace",
    "splits",
    "swap",
    "tokenizer",
    "trace",
    "trace_prompts",
    "train",
    "zero",
]


if not TYPE_CHECKING:  # or every name would seem to be there

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'loopwright' has no attribute {name!r}")
        from loopwright import public

        globals().update({one: getattr(public, one) for one in __all__})
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


autoregister()
keep_old_paths()
