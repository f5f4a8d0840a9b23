"""Trains the models of the training study and looks inside each: stage curves at the trained depth and far beyond it.

    python -m experiments.inside.train_run OUT.jsonl --corpus corpus --tokenizer runs/bpe --seeds 0,1 --keep runs/inside

CORPUS holds train-*.jsonl.gz (train-00 to train-04 for the rows that are kept), valid and test.jsonl.gz. TOKENIZER is a folder;
where it is not there yet, a byte-pair tokenizer of 8,192 tokens is trained on the first training file and put there. Each model is
measured where it was trained, in float32: its loss on held-out passages by depth, and traces of held-out prompts before training,
after it, and at depth DEEP. The models of --kept are saved in bfloat16 under --keep, those of other seeds than 0 with their seed
behind their label.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.corpus import OPTIONS, make_tokenizer, prepare
from experiments.inside.train_plan import AROUND, STEPS, Row, likenesses, rows
from experiments.side_by_side import compared, made_by
from experiments.study import Study
from experiments.thin import rounded
from experiments.trained import train_once

DEPTHS = (1, 2, 4, 8, 16, 32)
DEEP = 128
# what claims and figures read of a trace
READ = (
    "colsum", "mixing", "sink_rate", "any_sink_rate", "entropy", "norm", "step_norm", "fixed_norm", "fixed_cosine", "far_cosine",
)  # fmt: skip
BEYOND = ("colsum", "mixing", "sink_rate", "norm")  # of the deep trace; no entropy is taken there
DRAWN = "-4"  # the figures beyond the trained depth are of the first seed of models with this in their label
RESTS = ("fixed_cosine", "far_cosine", "fixed_norm", "step_norm")
KEPT = "sandwich-4-injected,sandwich-4,control"


def carry_out(
    row: Row, *, corpus: str, tokenizer: str, shards: str, context: int, passages: int, prompts: int, length: int, deep: int,
    keep: str | None, kept: str, extra: tuple[str, ...],
) -> dict[str, Any]:  # fmt: skip
    """Trains one model, measures it, saves it where asked to, and returns all numbers."""
    import torch

    from loopwright.data.tokenizer import Tokenizer
    from loopwright.evaluation.text import held_out, read_passages
    from loopwright.schema import build_kind, parse_overrides
    from loopwright.training.model import MODELS
    from loopwright.training.recipe import make_recipe

    chosen = make_recipe(row.recipe(corpus, tokenizer, context), changes=parse_overrides(extra))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    own, text = Tokenizer(tokenizer), Path(corpus) / "test.jsonl.gz"
    ids = whole_rows(read_passages("test", text, own, length), prompts, length).to(device)
    start = look_inside(build_kind(chosen.model, MODELS).build(chosen.seed).to(device), ids, stages=("attention",))
    trained = train_once(chosen, shards)
    model = trained.outcome.model.float().eval()
    torch.set_float32_matmul_precision("highest")
    looped = model.config.is_looped
    held = held_out(model, read_passages("test", text, own, context).drawn(passages), depths=DEPTHS if looped else None)
    found = {
        "name": row.name, "label": row.label, "seed": row.seed, "layers": row.layers, "injected": row.injected,
        "laid_over": list(extra), "parameters": sum(p.numel() for p in model.parameters()), "width": model.config.hidden_size,
        "updates": chosen.updates, "tokens": sum(entry["tokens"] for entry in trained.log), "train_seconds": trained.seconds,
        "losses": trained.losses(), "skipped": trained.outcome.progress.skipped,
        "held_out": compared(asdict(held), [STEPS if looped else 1]),
        "prompts": len(ids), "prompt_tokens": length,
        "start": start, "near": look_inside(model, ids, stages=("attention", "residual", "entropy")),
        "origin": made_by(),
    }  # fmt: skip
    if looped:
        traced = look_inside(model, ids, deep, stages=("attention", "residual", "lens", "fixed"))
        found["deep"] = thinned(traced, drawn=row.seed == 0 and row.family in AROUND and DRAWN in row.label)
    if keep is not None and row.folder in kept.split(","):
        import loopwright as lw

        lw.save(model.to(torch.bfloat16), Path(keep) / row.folder, own.own)
    return found


def whole_rows(passages: Any, count: int, length: int) -> Any:
    """Returns the tokens of so many passages that fill the length [count, length], drawn evenly and always alike."""
    import torch

    full = [place for place, row in enumerate(passages.rows) if len(row.ids) == length]
    chosen = torch.randperm(len(full), generator=torch.Generator().manual_seed(0))[:count].sort().values
    return torch.tensor([passages.rows[full[place]].ids for place in chosen.tolist()])


def look_inside(model: Any, ids: Any, depth: int | None = None, *, stages: tuple[str, ...]) -> dict[str, Any]:
    """Returns the summary of a trace, at the model's own depth where none is given; of what no claim or figure reads nothing."""
    from loopwright.analysis.summary import summarise
    from loopwright.analysis.trace.trace import trace

    own = model.config.depth if model.config.is_looped else None
    traced = trace(model, ids, depth or own, collect=stages)
    found = summarise(traced.examples(), answer_depth=own)
    by_place = {name: found["by_place"][name] for name in READ if name in found["by_place"]}
    found.get("limits", {}).pop("orbit", None)
    return {**found, "by_place": by_place}


def thinned(deep: dict[str, Any], *, drawn: bool) -> dict[str, Any]:
    """Returns of a deep trace what claims read and, where it is drawn, what figures do: curves to a few significant digits."""
    from experiments.inside.train_claims import norm_growth

    found, answers = deep["by_place"], deep.get("answers", {})
    by_place = {"colsum": {"mean": found["colsum"]["mean"] if drawn else rounded(found["colsum"]["mean"], 6)}}
    if drawn:
        by_place |= {name: {"mean": rounded(found[name]["mean"], 4)} for name in (*BEYOND, *RESTS) if name != "colsum"}
        for name in BEYOND:
            by_place[name]["std"] = rounded(found[name]["std"], 4)
    kept = {name: value for name, value in deep.items() if name != "by_step"}
    grown = {"growth": norm_growth(deep)} if deep["places"]["steps"] > STEPS else {}
    return {
        **kept,
        **grown,
        "by_place": by_place,
        "answers": {name: answers[name] for name in ("depth", "kept") if name in answers},
    }


def tokenise(asked: Namespace, left: Sequence[Row]) -> None:
    """Trains the tokenizer and tokenises the text, once for all rows."""
    from loopwright.schema import parse_overrides
    from loopwright.training.recipe import make_recipe

    data = next(rows()).recipe(asked.corpus, asked.tokenizer, asked.context)
    make_tokenizer(asked.corpus, Path(asked.tokenizer))
    prepare(make_recipe(data, changes=parse_overrides(asked.change)).data, asked.shards)


STUDY = Study(
    __doc__, carry_out, {"all": rows, "like": likenesses}, prepare=tokenise,
    options={
        **OPTIONS, "--shards": {"default": "runs/inside-shards", "help": "where token shards are kept"},
        "--context": {"type": int, "default": 256, "help": "tokens of a training row and of a held-out passage"},
        "--passages": {"type": int, "default": 300, "help": "held-out passages whose loss is measured"},
        "--prompts": {"type": int, "default": 32, "help": "held-out rows that are traced"},
        "--length": {"type": int, "default": 128, "help": "tokens of each"},
        "--deep": {"type": int, "default": DEEP, "help": "steps of the deep trace"},
        "--keep": {"help": "a folder to save models in; left out: none is saved"},
        "--kept": {"default": KEPT, "help": "which, by the names of their folders"},
    },
)  # fmt: skip


if __name__ == "__main__":
    STUDY.main()
