"""A byte-level tokenizer small enough to make in a test, in which tokens may reach over the end of a line."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
MERGES = [("t", "h"), ("th", "e"), ("Ċ", "y"), ("Ġ", "a")]  # Ċ is the line end, Ġ the blank
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def save_words(folder: Path, *, template: str | None = None, bos: bool = False, trim: bool = False, extra: str = "") -> str:
    """Writes the tokenizer into a folder and returns it as text. `trim` tells places without the blanks before a word; `extra` is
    one more word of the vocabulary."""
    symbols = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in MERGES)]
    inner = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(symbols)}, MERGES))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    special = ["<s>", "<eos>", "<|im_start|>", "<|im_end|>", *([extra] if extra else [])]
    words = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="<eos>", additional_special_tokens=special[2:], chat_template=template
    )
    if bos:
        words.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", words.bos_token_id)]
        )
    if trim:
        words.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    words.save_pretrained(folder)
    return str(folder)
