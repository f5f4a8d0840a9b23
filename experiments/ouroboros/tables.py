"""The retrofit study's tables and figures, from its results alone.

    python -m experiments.ouroboros.tables experiments/results/ouroboros/runs.jsonl experiments/results/ouroboros

Every share of a gap is on the same passages, worse = the truncated model, better = the full one, or the full one trained the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from experiments.ouroboros.answers import DIVERGED, QUESTION, answer, candidates, decided, named, target_sentence
from experiments.ouroboros.plan import (
    BEST,
    BEST_ONCE,
    BEST_STATIC,
    BLIND,
    CONTROLLER,
    CUT,
    DIAGONAL,
    FULL,
    GATE,
    GROUPS,
    HEALED,
    NORMED,
    ONCE,
    SHIFTED,
    STATIC,
    TRUNCATED,
    Row,
)
from experiments.ouroboros.run import DEPTHS, TEXTS
from experiments.pages import (
    Result,
    asked_tables,
    by_label,
    by_seed,
    missing_part,
    number,
    percent,
    results,
    save_all,
    signed,
    spread,
    table,
)
from experiments.seeds import RULE, Pooled, Share, best_depth, held, mean_loss, pooled, reports, share_of_gap, won
from loopwright.evaluation.text import HeldOut, Honest

# the question against low-rank tables per step, against the very same controller that reads nothing, then what bears on it
ASKED = ((CONTROLLER, STATIC), (CONTROLLER, BLIND), (NORMED, STATIC), (NORMED, BLIND))
BY_DEPTH = (*ASKED, (NORMED, CONTROLLER))  # told at each depth
PAIRS = (
    *BY_DEPTH, (BLIND, STATIC), (BLIND, DIAGONAL), (CONTROLLER, DIAGONAL), (CONTROLLER, GATE), (DIAGONAL, GATE),
    (DIAGONAL, STATIC), (GATE, STATIC), (CONTROLLER, ONCE), (STATIC, ONCE), (BEST, BEST_ONCE), (BEST, BEST_STATIC),
)  # fmt: skip
PAPER = "The paper's Table 5, 12 sentences: its retrofit beats the truncated model on 3, the full one on none; its share is −6.8 %."

Runs = Mapping[str, Sequence[Result]]
Shares = Mapping[str, Mapping[str, Share]]  # by label and text
Pairs = dict[tuple[str, str], dict[int | None, dict[str, Pooled]]]  # by labels, depth and text


def planned() -> Iterator[Row]:
    """All rows of the plan."""
    for group in GROUPS.values():
        yield from group()


def one(runs: Runs, label: str) -> Result | None:
    """Returns the first run of a row, None where it was not run."""
    return runs[label][0] if runs.get(label) else None


def shown_depth(label: str, found: Sequence[HeldOut]) -> int:
    """Returns the depth a row is told at: its best, and for the truncated model, which is not looped, its first."""
    return found[0].depth[0] if label in (TRUNCATED, CUT) else best_depth(found)


def shares_to(runs: Runs, better: str, worse: str = TRUNCATED) -> Shares:
    """Returns what each row recovers of the gap from a truncated model to a better one."""
    ends = one(runs, worse), one(runs, better)
    found: dict[str, dict[str, Share]] = {}
    for label, of_label in runs.items():
        for text in TEXTS:
            depth = shown_depth(label, reports(of_label, text))
            if (share := share_of_gap(of_label, *ends, text, depth)) is not None:
                found.setdefault(label, {})[text] = share
    return found


def share_table(runs: Runs, shares: Shares, healed: Shares, text: str) -> str:
    """Returns each row at its best depth: its loss, and what it recovers of both gaps."""
    head = ["row", "trained (of the kept)", "best depth", "loss: mean (range of seeds)", "gap recovered (95 %)", "by seed"]
    head.append("of the gap to the full model trained the same")
    lines = []
    for label, of_label in runs.items():
        found, first = reports(of_label, text), of_label[0]
        depth, share, other = shown_depth(label, found), shares.get(label, {}).get(text), healed.get(label, {}).get(text)
        lines.append([
            named(label, of_label), f"{first['trainable']:,} ({percent(first['trainable'] / first['kept'], 2)})",
            str(depth) if len(found[0].depth) > 1 else "–", spread([mean_loss([each], depth) for each in found]),
            interval(share), " / ".join(percent(each) for each in share.of_seeds) if share else "–", interval(other),
        ])  # fmt: skip
    return table(head, lines)


def interval(share: Share | None) -> str:
    """Returns a share and its interval."""
    return "–" if share is None else f"{percent(share.share)} ({percent(share.low)} to {percent(share.high)})"


def depth_table(runs: Runs, text: str) -> str:
    """Returns the loss of every row that was measured at several depths."""
    lines = []
    for label, of_label in runs.items():
        found = reports(of_label, text)
        if len(found[0].depth) > 1:
            lines.append([named(label, of_label), *[number(mean_loss(found, depth)) for depth in DEPTHS]])
    return table(["row", *[f"depth {depth}" for depth in DEPTHS]], lines)


def all_pairs(runs: Runs, asked: Sequence[tuple[str, str]] = PAIRS) -> Pairs:
    """Returns every pair on every text: both rows at each depth that they share, and (under None) each at its best."""
    found: Pairs = {}
    for first, second in asked:
        if runs.get(first) and runs.get(second):
            for depth in (*DEPTHS, None):
                both = {text: pooled(runs[first], runs[second], text, depth) for text in TEXTS}
                if kept := {text: each for text, each in both.items() if each is not None}:
                    found.setdefault((first, second), {})[depth] = kept
    return found


def answers_table(pairs: Pairs) -> str:
    """Returns what is decided on both texts together for each pair: at each equal depth, and with each row at its best."""
    head = ["is it better", "than", *[f"at depth {depth}" for depth in DEPTHS], "each at its best depth"]
    return table(head, (
        [first, second, *[decided(found[depth]) if depth in found else "–" for depth in (*DEPTHS, None)]]
        for (first, second), found in pairs.items()
    ))  # fmt: skip


def pair_table(pairs: Pairs, text: str, gap: float | None) -> str:
    """Returns the pairs on one text: those told at each equal depth, then every pair with each row at its best."""
    head = ["first", "second", "depths", "difference of losses (95 %)", "by seed", "of the gap", "passages won", "first's loss is"]
    lines = []
    for names, found in pairs.items():
        for depth, on_texts in found.items():
            each = on_texts.get(text)
            if each is None or (depth is not None and names not in BY_DEPTH):
                continue
            depths = f"best: {each.depths[0]}, {each.depths[1]}" if depth is None else f"both {depth}"
            of_gap = percent(each.difference / gap) if gap else "–"
            told = [signed(each.difference, each.low, each.high), by_seed(each.of_seeds), of_gap]
            lines.append([*names, depths, *told, percent(sum(each.won) / len(each.won), 0), each.verdict])
    return table(head, lines)


def wins_table(runs: Runs, text: str) -> str:
    """Returns how many passages each row wins against the references, as the paper's Table 5: the mean over seeds."""
    head = ["row", "loss", *[f"beats {label}" for label in (TRUNCATED, FULL, HEALED)]]
    lines = []
    for label, of_label in runs.items():
        found = reports(of_label, text)
        depth = shown_depth(label, found)
        cells = [named(label, of_label), number(mean_loss(found, depth))]
        for other in (TRUNCATED, FULL, HEALED):
            run = one(runs, other)
            if run is None or label == other:
                cells.append("–")
                continue
            end = held(run, text)
            share = sum(won(each, end, depths=(depth, shown_depth(other, [end]))) for each in found) / len(found)
            cells.append(f"{share * end.passages:.0f} of {end.passages} ({percent(share, 0)})")
        lines.append(cells)
    return table(head, lines)


def honest_table(runs: Runs, text: str) -> str:
    """Returns the rows that see the future: in one pass and from prefixes alone on the same tokens, beside the causal one."""
    head = ["row", "depth", "sampled tokens, one pass", "the same, prefix by prefix", "gain from the future (95 %), by seed"]
    head += ["all tokens, one pass", "with the gain given back", f"{CONTROLLER}, all tokens"]
    lines = []
    for label, of_label in runs.items():
        found = [each for each in reports(of_label, text) if each.honest is not None]
        for place, depth in enumerate(found[0].depth if found else ()):
            told = [each.honest for each in found if each.honest is not None]
            gains = [h.gain[place] for h in told]
            mean = math.nan if None in gains else sum(gain for gain in gains if gain is not None) / len(gains)
            causal = mean_loss(reports(runs[CONTROLLER], text), depth) if runs.get(CONTROLLER) else None
            lines.append([
                label, str(depth), spread([h.forced[place] for h in told]), spread([h.loss[place] for h in told]),
                " / ".join(gain_of(h, place) for h in told),
                number(mean_loss(found, depth)), number(mean_loss(found, depth) + mean), number(causal),
            ])  # fmt: skip
    return table(head, lines)


def gain_of(found: Honest, place: int) -> str:
    """Returns what seeing the future gains at the depth of a place, with its interval."""
    return f"{number(found.gain[place], 4)} ({number(found.gain_low[place], 4)} to {number(found.gain_high[place], 4)})"


def shifted_table(runs: Runs, shares: Shares) -> str:
    """Returns the run on labels shifted twice beside the same on right ones, of the same seed, and the truncated model."""
    head = ["row", "training loss on its own labels: first → last"]
    head += [cell for text in TEXTS for cell in (f"{text} loss", "gap recovered", "beats truncated")]
    lines, worse = [], one(runs, TRUNCATED)
    for label in (TRUNCATED, CONTROLLER, *SHIFTED):
        run = one(runs, label)
        if run is None:
            continue
        logged = run["losses"]
        cells = [label, f"{number(logged[0])} → {number(logged[-1])}" if logged else "–"]
        for text in TEXTS:
            found, share = held(run, text), shares.get(label, {}).get(text)
            depth = shown_depth(label, [found])
            beats = "–"
            if worse is not None and label != TRUNCATED:
                end = held(worse, text)
                beats = percent(won(found, end, depths=(depth, shown_depth(TRUNCATED, [end]))), 0)
            cells += [f"{number(mean_loss([found], depth))} at depth {depth}", percent(share.of_seeds[0]) if share else "–", beats]
        lines.append(cells)
    return table(head, lines)


def diagonal_table(runs: Runs) -> str:
    """Returns what the diagonals of each controller vary with, seeds side by side."""
    head = ["row", "size (RMS)", "of the variance: between steps", "between kinds of text", "between passages of a kind"]
    lines = []
    for label, of_label in runs.items():
        said = [run["diagonals"] for run in of_label if run.get("diagonals")]
        if said:
            shares = [" / ".join(percent(each["shares"][name]) for each in said) for name in ("steps", "kinds", "passages")]
            lines.append([label, " / ".join(f"{each['size']:.3g}" for each in said), *shares])
    return table(head, lines)


def text_part(runs: Runs, shares: Shares, healed: Shares, text: str) -> list[str]:
    """Returns the part of the page about one text."""
    first = held(next(iter(runs.values()))[0], text)
    groups = {"Main rows": ("references", "main", "best"), "Other rows, one seed each": ("others",)}
    page = [f"## {text}: {first.targets:,} tokens of {first.documents} documents, context {first.context}"]
    for title, names in groups.items():
        chosen = {label: of_label for label, of_label in runs.items() if of_label[0]["group"] in names}
        page += [f"### {title}", share_table(chosen, shares, healed, text)]
    return [
        *page, "### Loss by depth, mean over seeds", depth_table(runs, text),
        "### Passages won, each row at its best depth", PAPER, wins_table(runs, text),
        "### Seeing the future", honest_table(runs, text),
    ]  # fmt: skip


def question_part(runs: Runs, shares: Shares, pairs: Pairs) -> list[str]:
    """Returns the part of the page that answers the question and the target."""
    gaps = {text: share.gap for found in shares.values() for text, share in found.items()}
    able = candidates(runs, shares)
    looped = [each for each in able if runs[each.label][0]["system"] != "healed"]
    page = [f"## {QUESTION}"]
    for first, second in ASKED:
        both = one(runs, first), one(runs, second)
        sizes = f" They train {both[0]['trainable']:,} and {both[1]['trainable']:,} parameters." if both[0] and both[1] else ""
        said = answer({depth: found for depth, found in pairs.get((first, second), {}).items() if depth is not None})
        page.append(f"`{first}` against `{second}`: **{said}**{sizes}")
    page.append(answers_table(pairs))
    for text in TEXTS:
        page += [f"### {text}, pair by pair", pair_table(pairs, text, gaps.get(text))]
    targets = [target_sentence(looped, "Best looped row"), target_sentence(able, "Best row of all")]
    targets += own_sentences(runs)
    return [
        *page, "## The target", "\n".join(f"- {line}" for line in targets),
        "## Labels shifted twice", shifted_table(runs, shares), "## What the controllers say", diagonal_table(runs),
    ]  # fmt: skip


def own_sentences(runs: Runs) -> list[str]:
    """Returns what the rows of the searched layout recover of the gap that this layout itself leaves, which is smaller."""
    told = []
    for label, found in shares_to(runs, FULL, CUT).items():
        if label.endswith("searched layout") and label != CUT:
            parts = [
                f"{percent(each.share)} ({percent(each.low)} to {percent(each.high)}) on {text}" for text, each in found.items()
            ]
            told.append(f"Of the gap of its own layout, {label}: {'; '.join(parts)}.")
    return told


def rules() -> str:
    """Returns the sentences that say what the numbers are."""
    lines = [
        RULE,
        "The question is answered with yes or no at a depth where the difference is decided with the same sign on both texts, "
        "else it is not resolved there; one seed decides nothing. Depth 16 was not trained.",
        "The gap goes from the truncated model to the full one. Training on this text can pass the full model, so the last column "
        "has the gap from the truncated model to the full one trained on the same tokens with as many parameters (one seed).",
        "The best depth is the one with the least mean loss over seeds on that text.",
        "Of the gap: the difference as a share of the gap from the truncated to the full model.",
        "Of the parameters that the blind controller trains, about 213 thousand would read the state and are idle.",
        "“static, equal parameters” is both rows of that kind, static modulation at matched parameters and LoRA per step: rank 4.",
        "† sees the future: its one-pass loss is not a likelihood.",
        f"‡ diverged: its training loss (means of 10 updates) ended more than {DIVERGED:g} nat above its least.",
    ]
    return "\n".join(f"- {line}" for line in lines)


def main() -> None:
    """Writes table.md and the figures."""
    from experiments.ouroboros.figures import draw_all

    sources, folder = asked_tables(__doc__)
    found = results(sources, planned())
    runs = by_label(found)
    shares, healed, pairs = shares_to(runs, FULL), shares_to(runs, HEALED), all_pairs(runs)
    page = ["# The retrofit study", "`python -m experiments.ouroboros.tables` made this page.", "## How to read it", rules()]
    page += question_part(runs, shares, pairs)
    for text in TEXTS if runs else ():
        page += text_part(runs, shares, healed, text)
    (folder / "table.md").write_text("\n\n".join([*page, *missing_part(found, planned())]) + "\n")
    for path in [folder / "table.md", *save_all(draw_all(runs, shares, pairs), folder)]:
        print(path)


if __name__ == "__main__":
    main()
