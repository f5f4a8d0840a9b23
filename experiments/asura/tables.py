"""The ASURA study's tables and figures, from its results alone.

python -m experiments.asura.tables experiments/results/asura/runs.jsonl experiments/results/asura
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from experiments.asura.figures import draw_all
from experiments.asura.pairing import arranged, files_of, less_whole, wholes
from experiments.asura.plan import ALL_COMPARED, ALL_RATES, ALL_TEXT, LARGER_START, SIZES, WHOLE, rows
from experiments.asura.run import TEXTS
from experiments.pages import (
    Result,
    asked_tables,
    by_label,
    by_seed,
    missing_part,
    number,
    results,
    save_all,
    signed,
    spread,
    table,
    words,
)
from experiments.seeds import RULE, Pooled, best_depth, held, loss_interval, mean_loss, pooled, reports
from loopwright.training.report import BEFORE, DEVIATIONS

Labels = Mapping[str, Sequence[Result]]
# what the description of ASURA says about each row's difference from it
CLAIMS = {
    "plain, equal FLOPs": "strong performance at the same FLOPs as a plain transformer",
    "plain, equal parameters": "sharing over depth makes more of the parameters",
    "naive universal": "a naive universal transformer is unstable and makes little of its steps",
    "without the projected skip": "the projected skip stabilises and helps the gradient",
    "one projection for all steps": "the projection is one of each step",
    LARGER_START: "the same, started alike",
    "one norm for all steps": "norms of their own for each step cost little and stabilise",
    "without norms after layers": "norms after layers: little change of loss at a small size, fewer spikes and calmer gradients",
    "without adapters": "adapters per step give each step work of its own",
    "ASURA with LoRA": "ABBA does more than LoRA of the same size",
}


def cost_table(labels: Labels) -> str:
    """Returns what the rows of a size are made of: parameters, FLOPs, tokens, and both beside ASURA's."""
    whole = labels.get(WHOLE, [None])[0]

    def beside(run: Result, name: str) -> str:
        return "" if whole is None else f" ({run[name] / whole[name]:.2f} ×)"

    head = ["row", "parameters (ASURA = 1)", "FLOPs per token, forward (ASURA = 1)", "training tokens", "seeds, by training files"]
    return table(head, (
        [
            label, f"{run['parameters']:,}{beside(run, 'parameters')}", f"{run['flops'] / 1e6:,.1f} M{beside(run, 'flops')}",
            f"{run['tokens']:,}", seeds_by_files(runs),
        ]
        for label, runs in labels.items() for run in runs[:1]
    ))  # fmt: skip


def seeds_by_files(runs: Sequence[Result]) -> str:
    """Returns the seeds of a row with the number of files that they read: "5 files: 0; 12 files: 1, 2"."""
    by_files: dict[int, list[str]] = {}
    for run in runs:
        by_files.setdefault(files_of(run), []).append(str(run["seed"]))
    return "; ".join(f"{files} files: {', '.join(seeds)}" for files, seeds in by_files.items())


def loss_table(labels: Labels) -> str:
    """Returns each row's held-out losses, and how far they are from ASURA's on the same passages."""
    head = ["row", *[f"{text}: {what}" for text in TEXTS for what in ("loss (95 %)", "by seed", "less ASURA's (95 %); by seed")]]
    lines = []
    for label, runs in labels.items():
        cells = [label]
        for text in TEXTS:
            found = reports(runs, text)
            low, high = loss_interval(found)
            cells += [
                f"{number(mean_loss(found, best_depth(found)))} ({number(low)} to {number(high)})",
                " / ".join(number(each.loss[-1]) for each in found), beside(less_whole(runs, labels, text)),
            ]  # fmt: skip
        lines.append(cells)
    return table(head, lines)


def beside(found: Pooled | None) -> str:
    """Returns a difference in words: all seeds together, and each alone where there are several."""
    if found is None or found.difference == found.low == found.high == 0:
        return "–"
    alone = f"; {by_seed(found.of_seeds)}" if len(found.seeds) > 1 else ""
    return signed(found.difference, found.low, found.high) + alone


def stability_table(labels: Labels) -> str:
    """Returns gradient norms, spikes and skipped updates of each row, seeds side by side."""
    head = ["row", "gradient norm: median", "largest", "loss spikes, by seed", "skipped updates, by seed", "last training loss"]
    lines = []
    for label, runs in labels.items():
        lines.append([
            label, spread([statistics.median(run["gradient_norms"]) for run in runs], 2),
            spread([max(run["gradient_norms"]) for run in runs], 2),
            ", ".join(str(run["spikes"]) for run in runs), ", ".join(str(run["skipped"]) for run in runs),
            spread([run["losses"][-1] for run in runs]),
        ])  # fmt: skip
    return table(head, lines)


def judged(found: Mapping[str, Pooled | None], apart: Mapping[str, float]) -> str:
    """Returns what the differences of a row to ASURA on all texts say about ASURA's loss. A difference of one seed must also be
    larger than what seeds of one row lie `apart` on that text: where no row has several, nothing is resolved."""
    verdicts = {
        text: "not resolved" if len(each.seeds) == 1 and abs(each.difference) <= apart.get(text, math.inf) else each.verdict
        for text, each in found.items() if each is not None
    }  # fmt: skip
    if not verdicts:
        return "not run"
    # the row's loss is the first of the pair: where it is higher, ASURA's is lower
    turned = {"lower": "higher", "higher": "lower", "not resolved": "not resolved"}
    kinds = {turned[verdict] for verdict in verdicts.values()}
    one_seed = max(len(each.seeds) for each in found.values() if each is not None) == 1
    said = kinds.pop() if len(kinds) == 1 else ", ".join(f"{turned[verdict]} ({text})" for text, verdict in verdicts.items())
    return said + (", one seed" if one_seed else "")


def claim_table(sizes: Mapping[str, Labels]) -> str:
    """Returns each claim, the row that speaks to it, and what both sizes say."""
    head = ["claim", "row", *[f"ASURA's loss, {size}" for size in sizes], *[f"spikes: ASURA / row, {size}" for size in sizes]]
    lines = []
    for label, claim in CLAIMS.items():
        losses, spikes = [], []
        for labels in sizes.values():
            runs = labels.get(label, [])
            losses.append(judged({text: less_whole(runs, labels, text) for text in TEXTS}, seeds_apart(labels)))
            spikes.append(f"{rate(wholes(runs, labels) or labels.get(WHOLE, []))} / {rate(runs)}")
        lines.append([claim, label, *losses, *spikes])
    return table(head, lines)


def all_text_table(labels: Labels) -> str:
    """Returns what was read from all of the text: every arm at every rate, the loss on `valid`, which chooses the rate, and on both
    held-out texts."""
    head = ["row", "parameters", "FLOPs per token, forward", "training tokens", "last training loss", "valid", *TEXTS]
    return table(head, (
        [
            label, f"{run['parameters']:,}", f"{run['flops'] / 1e6:,.1f} M", f"{run['tokens']:,}", number(run["losses"][-1]),
            number(run["valid"]), *[number(held(run, text).loss[-1]) for text in TEXTS],
        ]
        for label, runs in labels.items() for run in runs[:1]
    ))  # fmt: skip


def best_of_rates(labels: Labels) -> dict[str, Sequence[Result]]:
    """Returns the runs of each arm at the rate with the least loss on `valid`, where all its rates were run."""
    best = {}
    for arm in ALL_COMPARED:
        tried = [labels.get(f"{arm}, rate {rate:g}", []) for rate in ALL_RATES]
        if all(tried):
            best[arm] = min(tried, key=lambda runs: runs[0]["valid"])
    return best


def all_text_sentence(labels: Labels) -> str:
    """Returns plain layers less ASURA, each at its better rate."""
    best = best_of_rates(labels)
    if len(best) < len(ALL_COMPARED):
        return "Not all rates were run."
    whole, plain = (best[arm] for arm in ALL_COMPARED)
    told = [f"{plain[0]['label']} less {whole[0]['label']}, the better rate of each on `valid`: {on_texts(plain, whole)}."]
    for rate in ALL_RATES:
        whole, plain = (labels[f"{arm}, rate {rate:g}"] for arm in ALL_COMPARED)
        told.append(f"At {rate:g} both: {on_texts(plain, whole)}.")
    told.append("Of 1 seed: the intervals are over documents alone." if len(plain) == 1 else f"Of {len(plain)} seeds.")
    return " ".join(told)


def on_texts(first: Sequence[Result], second: Sequence[Result]) -> str:
    """Returns one row less another on each text."""
    return words([f"{text} {beside(pooled(first, second, text))}" for text in TEXTS])


def rate(runs: Sequence[Result]) -> str:
    """Returns the spikes per run."""
    return number(sum(run["spikes"] for run in runs) / len(runs), 1) if runs else "–"


def seeds_apart(labels: Labels) -> dict[str, float]:
    """Returns how far the losses of two seeds of one row lie apart at most, by text: one seed's difference is read against it."""
    found = {}
    for text in TEXTS:
        losses = [[mean_loss([each], each.depth[-1]) for each in reports(runs, text)] for runs in labels.values() if len(runs) > 1]
        if losses:
            found[text] = max(max(row) - min(row) for row in losses)
    return found


def apart_sentence(labels: Labels) -> str:
    """Returns what is said of the seeds below a table of losses."""
    parts = [f"{value:.4f} on {text}" for text, value in seeds_apart(labels).items()]
    return f"Seeds of one row lie at most {words(parts)} apart." if parts else "No row has several seeds."


def main() -> None:
    """Writes table.md and the figures."""
    sources, folder = asked_tables(__doc__)
    found = results(sources, rows())
    sizes = {size: by_label(run for run in found if run["size"] == size) for size in SIZES}
    sizes = {size: arranged(labels) for size, labels in sizes.items() if labels}
    page = ["# The ASURA study", "`python -m experiments.asura.tables` made this page.", "## How to read it", rules(found)]
    page += ["## What each row speaks to", claim_table(sizes)]
    for size, labels in sizes.items():
        page += [
            f"## {size}", "### Cost", cost_table(labels), "### Held-out loss", loss_table(labels), apart_sentence(labels),
            "### Stability", stability_table(labels),
        ]  # fmt: skip
    if whole := by_label(run for run in found if run["size"] == ALL_TEXT):
        page += [f"## {ALL_TEXT}", all_text_table(whole), all_text_sentence(whole)]
    (folder / "table.md").write_text("\n\n".join([*page, *missing_part(found, rows())]) + "\n")
    for path in [folder / "table.md", *save_all(draw_all(sizes), folder)]:
        print(path)


def rules(found: Sequence[Result]) -> str:
    """Returns the sentences that say what the numbers are."""
    lines = [RULE]
    for text in TEXTS if found else ():
        one = held(found[0], text)
        lines.append(f"`{text}`: {one.targets:,} tokens of {one.documents:,} documents, context {one.context}.")
    lines += [
        "A row with one seed has an interval over documents alone: its difference must also be larger than the largest distance "
        "between two seeds of any row of that size, which stands below the table.",
        f"A spike is an update whose loss lies more than {DEVIATIONS:g} standard deviations above the mean of the {BEFORE} before "
        "it. "
        "Gradient norms are before clipping; median and largest are of the largest norm in every 20 updates. A skipped update is "
        "one whose loss or gradient was not finite.",
        "ASURA's loss is lower or higher than a row's where the difference is decided on both texts; the texts are named "
        "where they part.",
        "Rows drew their batches from the first five training files or from all twelve, which are one mixture. Two rows of one "
        "seed saw the same batches only where both drew from as many files. ASURA was run on both, and at each schedule: each row "
        "is compared, seed by seed, with the ASURA row that saw the same batches at the same schedule.",
    ]
    return "\n".join(f"- {line}" for line in lines)


if __name__ == "__main__":
    main()
