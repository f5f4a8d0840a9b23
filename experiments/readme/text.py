"""What the README says of looping on text."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.readme.rows import when
from experiments.repeats.plan import FLOPS, FRESH, LONGER, ONCE
from experiments.templates import asura, depths, repeats, whole_text
from experiments.templates.words import decided, from_to, seeds, size


def at_equal_parameters() -> str:
    """Returns how far ASURA is ahead of plain layers of nearly equal parameters, and at which cost."""
    found, cost = asura.both(asura.WHOLE, asura.PARAMETERS), asura.times(asura.WHOLE, asura.PARAMETERS, "flops")
    lower = all(each.verdict == "lower" for each in found)
    return when(lower, f"by {from_to(found, 2)} nats, decided, for {from_to(cost, 1)} times the FLOPs")


def equal_flops() -> str:
    """Returns how ASURA stands to plain layers of nearly equal FLOPs."""
    small, middle = asura.both(asura.WHOLE, asura.FLOPS)
    word = {each: decided(each).replace("undecided", "not decided") for each in (small, middle)}
    told = f"behind by {small.difference:.3f} at the small size ({word[small]})"
    return f"{told}, ahead by {-middle.difference:.3f} at the middle one (p = {asura.p(middle):.2f}, {word[middle]})"


def parts() -> str:
    """Returns which of ASURA's parts shows a gain."""
    told = f"({size(asura.both(asura.NO_NORMS), 2)}; after a Bonferroni correction at the middle size alone)"
    at_middle = [size for size, label in asura.left() if label == asura.NO_NORMS] == ["middle"]
    alone = asura.gains() == [asura.NO_NORMS] and at_middle
    return when(alone, f"only the norms after layers show a decided gain at both sizes {told}")


def claims() -> Iterator[str]:
    """Yields the rest of what the README says: short runs, longer ones, and the loop's part."""
    flops, same, more = (repeats.stands("ASURA", rival, 1) for rival in (FLOPS, LONGER, FRESH))
    near = f"ASURA leads plain layers of nearly equal FLOPs by {size(flops, 2)} nats at equal updates (decided)"
    yield when(flops.verdict == "lower", near)
    cost, updates = repeats.spent().replace("its FLOPs", "the FLOPs of ASURA with its loop").split(" on ")
    beaten = f"four plain layers with {cost}, in {updates}, beat that by {size(same, 2)} (decided)"
    yield when({same.verdict, more.verdict} == {"higher"}, beaten)
    all_flops, few, *_ = whole_text.verdicts()
    where = f"On {whole_text.text():.1f} million tokens read four times, at rates chosen on little text, the small size"
    both = f"{size(all_flops, 2)} behind plain layers of nearly equal FLOPs and {size(few, 2)} ahead of those of"
    yield f"{where} is {both} nearly equal parameters ({seeds(few)}, both decided)"
    whole, once = whole_text.added_to()
    read = f"{whole_text.runs_of(ONCE)[0]['tokens'] / 1e6:.0f} million tokens read"
    told = f"In longer runs ({read}) ASURA at depth 1 leads four plain layers by {size(once, 2)}"
    more_told = f"and its three steps add {size(whole, 2)} for {whole_text.dearer('ASURA', ONCE)} times the FLOPs"
    yield f"{told}, {more_told} (both decided; the steps not after a correction for many comparisons)"
    calm = depths.less_plain(1, calm=True)
    alone = f"by {size(calm, 2)} at their rate (decided), where no greater depth adds a decided amount"
    led = calm.verdict == "lower" and depths.none_decided(calm=True)
    yield when(led, f"without its loop it leads four plain layers, too, {alone}")
