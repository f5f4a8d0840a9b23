"""`loopwright compare`: two models, or one at two depths, on the same rows or passages."""

from __future__ import annotations

from collections.abc import Sequence

from loopwright.commands.console import console, told_warnings
from loopwright.commands.device import find_device
from loopwright.commands.evaluation.evaluate import name_texts
from loopwright.verbs import Comparison
from loopwright.verbs import compare as compare_models


def compare(
    first: str,
    second: str,
    *,
    depths: str | None = None,
    data: str | None = None,
    texts: Sequence[str] = (),
    tokenizer: str | None = None,
    splits: Sequence[str] = (),
    rows: int | None = None,
    batch: int | None = None,
    context: int | None = None,
    device: str = "cpu",
) -> Comparison:
    """Prints how the first does against the second, paired, and returns it."""
    with told_warnings():
        comparison = compare_models(
            first, second,
            depths=parse_pair(depths), data=data, text=name_texts(texts) or None, tokenizer=tokenizer, splits=splits, rows=rows,
            batch=batch, context=context, device=find_device(device),
        )  # fmt: skip
    printer = console()
    printer.print(comparison.table(printer.width))
    return comparison


def parse_pair(words: str | None) -> int | tuple[int | None, int | None] | None:
    """Returns the depths that `4` (both) or `8,1` (one each) names; None where nothing is said."""
    if words is None:
        return None
    parts = words.split(",")
    if len(parts) > 2 or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"depths: {words!r}; give one depth for both (4), or one for each (8,1), each at least 1")
    numbers = [int(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])
