"""What a model of the study makes of held-out chats and text at every depth, from one pass each, and what it answers by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from experiments.sft.plan import BEYOND, DEPTHS, TRAINED, Places
from experiments.side_by_side import compared
from experiments.thin import rounded
from loopwright.data.build import build_data
from loopwright.data.chat import Chats
from loopwright.data.tokenizer import Tokenizer
from loopwright.evaluation.likelihood import need_likelihood
from loopwright.evaluation.text import Passage, Passages, held_out, read_passages
from loopwright.generation.readings import left_padded, readings
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.training.recipe import Recipe
from loopwright.training.validation import measure

CONTEXT = 512
RADIUS_TOKENS = 128
AT_ONCE = 16  # passages of a pass: trainings side by side want the memory
NUMBER = re.compile(r"####\s*\$?(-?[\d,]*\.?\d+)")


def chat_passages(chosen: Recipe, places: Places, count: int) -> Passages:
    """Returns the first held-out chats of a recipe, each a passage of which the answer is scored."""
    splits = build_data(chosen.data, Path(places.shards))
    chats, tokenizer = splits.valid, Tokenizer(chosen.data["tokenizer"])
    assert isinstance(chats, Chats)
    rows = []
    for place in range(min(count, len(chats))):
        batch = chats.batch([place])
        scored = (batch.labels[0] >= 0).nonzero()[:, 0].tolist()
        ids = tuple(batch.input_ids[0, : scored[-1] + 1].tolist())
        rows.append(Passage(ids, scored[0], len(tokenizer.decode(ids[scored[0] :]).encode()), place))
    return Passages("chats", chosen.data["length"], tuple(rows), splits.vocab_size)


def results_alone(chats: Passages, tokenizer: Tokenizer) -> Passages:
    """Returns the same chats, of which what follows "####" is scored: the result, after the true reasoning."""

    def cut(row: Passage) -> Passage:
        first = len(row.ids)
        while first > row.first and "#" not in tokenizer.decode(row.ids[first - 1 :]):
            first -= 1
        return replace(row, first=first)

    return replace(chats, rows=tuple(cut(row) for row in chats.rows))


def right_by_depth(model: LoopedForCausalLM, passages: Passages, depths: Sequence[int] | None) -> list[float]:
    """Returns the share of passages whose scored tokens are all the likeliest, by depth."""
    order, found = passages.by_length(), []
    for start in range(0, len(order), AT_ONCE):
        batch = passages.batch(order[start : start + AT_ONCE]).to(model.device)
        found.append(torch.stack([reading.exact for reading in readings(model, batch, depths)]).cpu())
    return torch.cat(found, 1).double().mean(1).tolist()


def read_model(model: LoopedForCausalLM, chosen: Recipe, places: Places, *, rows: int, passages: int) -> dict[str, Any]:
    """Returns the losses of held-out chats and text and the results after true reasoning at every depth, and the radius."""
    model.float().eval()
    torch.set_float32_matmul_precision("highest")
    verdict = need_likelihood(model)
    tokenizer, looped = Tokenizer(str(places.base)), model.config.is_looped
    chats = chat_passages(chosen, places, rows)
    text = read_passages("text", Path(places.data) / "valid.jsonl*", tokenizer, CONTEXT).drawn(passages)
    found: dict[str, Any] = {"radius": _radius(model, text) if looped else {}}
    torch.set_float32_matmul_precision("high")
    depths, kept = (DEPTHS, (TRAINED, *BEYOND)) if looped else (None, (1,))
    texts = {each.name: held_out(model, each, depths=depths, causality=verdict, batch_size=AT_ONCE) for each in (chats, text)}
    found["texts"] = {name: rounded(compared(asdict(report), kept), 6) for name, report in texts.items()}
    return found | {"results": right_by_depth(model, results_alone(chats, tokenizer), depths)}


def _radius(model: LoopedForCausalLM, text: Passages) -> dict[str, Any]:
    ids = torch.tensor([row.ids[:RADIUS_TOKENS] for row in text.rows if len(row.ids) >= RADIUS_TOKENS][:4])
    batch = replace(text.batch([0]), input_ids=ids, labels=ids, attention_mask=None).to(model.device)
    return {str(depth): measure(model, batch, depth, rows=4) for depth in (TRAINED, DEPTHS[-1])}


def answers(
    model: LoopedForCausalLM, chats: Passages, tokenizer: Tokenizer, depth: int | None, *, batch: int, most: int
) -> Iterator[tuple[str, str]]:
    """Yields what the model answers to each question by itself, the likeliest token at a time, beside what the chat says."""
    given = {} if depth is None else {"depth": depth}
    for start in range(0, len(chats), batch):
        rows = chats.rows[start : start + batch]
        prompts = [torch.tensor(row.ids[: row.first]) for row in rows]
        ids, mask = left_padded(prompts, max(map(len, prompts)), tokenizer.pad_id)
        made = model.generate(
            ids.to(model.device), attention_mask=mask.to(model.device), max_new_tokens=most, do_sample=False,
            eos_token_id=rows[0].ids[-1], pad_token_id=tokenizer.pad_id, **given,
        )  # fmt: skip
        for row, tokens in zip(rows, made[:, ids.shape[1] :].tolist(), strict=True):
            yield tokenizer.decode(tokens), tokenizer.decode(row.ids[row.first :])


def result(text: str) -> str | None:
    """Returns the number after "####", without commas; None where there is none."""
    found = NUMBER.search(text)
    return None if found is None else found.group(1).replace(",", "").removesuffix(".00")
