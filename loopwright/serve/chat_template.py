"""Messages to token ids, by the tokenizer's own chat template. A template of the client's is never taken."""

from __future__ import annotations

from loopwright.confined import LimitError, Words
from loopwright.serve.limits import Refusal


def chat_ids(words: Words, messages: list[dict[str, str]], *, opening: bool = True) -> list[int]:
    """Returns the ids of a conversation with, or without, the opening of the answer."""
    if words.tokenizer.chat_template is None:
        raise Refusal(
            "messages: this model's tokenizer has no chat template; use /v1/completions", param="messages", code="no_chat_template"
        )
    try:
        return words.chat(messages, opening=opening)
    except LimitError as error:
        raise Refusal(f"messages: the model's chat template was stopped ({error})", param="messages") from None
    except ValueError as error:
        raise Refusal(str(error), param="messages") from None
