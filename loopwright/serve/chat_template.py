"""Messages to token ids, by the tokenizer's own chat template. A template of the client's is never taken."""

from __future__ import annotations

from typing import Any

from loopwright.serve.limits import Refusal
from loopwright.untrusted import first_line

LONGEST_REASON = 200  # characters of what a template raised


def chat_ids(tokenizer: Any, messages: list[dict[str, str]], *, opening: bool = True) -> list[int]:
    """Returns the ids of a conversation with, or without, the opening of the answer."""
    if tokenizer.chat_template is None:
        raise Refusal(
            "messages: this model's tokenizer has no chat template; use /v1/completions", param="messages", code="no_chat_template"
        )
    try:
        encoded: Any = tokenizer.apply_chat_template(messages, add_generation_prompt=opening, return_dict=True)
    except Exception as error:  # a template is a program of the folder: it raises what it likes
        reason = f"{type(error).__name__}: {first_line(error)}"[:LONGEST_REASON]
        raise Refusal(f"messages: the model's chat template refuses them ({reason})", param="messages") from None
    return list(encoded["input_ids"])
