"""What docs/coverage.md and docs/inside-training.md say of looping on text."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.readme.rows import when
from experiments.templates import depths, whole_text
from experiments.templates.words import from_to, mean, open_, seeds, signed


def depth_claims() -> Iterator[str]:
    """Yields what docs/coverage.md says of the logarithm of the depth."""
    own, calm = depths.sloped(), depths.sloped(calm=True)
    yield when(open_(own), "At 4e-3, the rate that was chosen, such a gain is not shown and not excluded")
    change = f"at 2e-3 the loss changes by {signed(mean(calm))} nats with each doubling (undecided)"
    line = f"a gain of more than {depths.excluded():.3f} with each doubling is excluded (95 % over seeds)"
    yield when(open_(calm), f"{change}; if it lies on a straight line, {line}")
    yield f"{from_to(depths.millions(), 1)} million parameters"


def norms_claims() -> Iterator[str]:
    """Yields what docs/inside-training.md says beside its own models with Huginn's norms."""
    *_, huginn, _ = whole_text.verdicts()
    told = f"it is {huginn.difference:.3f} behind plain layers of nearly equal FLOPs ({seeds(huginn)}, decided)"
    yield f"On all of the text, read four times, {told}"
