"""bf16 on the GPU: load, generate, and the same tokens cached, replayed and uncached, on 8 prompts, for models with real weights.

Two correct bf16 programs may part where two tokens are tied to within rounding: a matrix times one row and the same matrix
times many rows add up in another order. So this takes a small looped model trained here on 20 kB of bytes, saved and loaded
again through `lw.load`, and asks it to go on with text it knows (clear margins: every token must agree) and with text it
has not seen (near-ties: where the tokens part, the margin between the two best tokens is written down, and float32 must
agree everywhere). A dense checkpoint may be given as well.

    python -m experiments.bf16_generation TEXT.gz OUT.json [DENSE_FOLDER]
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from pathlib import Path

import torch

import loopwright as lw

UPDATES, ROWS, LENGTH, NEW, PROMPTS = 600, 64, 128, 64, 8
KNOWN = 20_000  # bytes


def trained(text: bytes, device: str) -> tuple[lw.LoopedForCausalLM, float]:
    """Returns a Huginn-like byte model after a short training at random depth 2–6, and its last loss."""
    torch.manual_seed(0)
    model = lw.build(
        "huginn", vocab_size=256, hidden_size=256, intermediate_size=704, num_attention_heads=4, core_layers=2, depth=4,
        embedding_scale=16.0, state={"kind": "noise", "scale": 16.0},
    ).to(device).train()  # fmt: skip
    data = torch.tensor(list(text), dtype=torch.uint8)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=UPDATES)
    depths = torch.Generator().manual_seed(0)
    loss = torch.tensor(0.0)
    for update in range(UPDATES):
        starts = torch.randint(0, len(data) - LENGTH, (ROWS,), generator=depths)
        batch = torch.stack([data[i : i + LENGTH] for i in starts.tolist()]).long().to(device)
        depth = int(torch.randint(2, 7, (1,), generator=depths))
        loss = model(batch, labels=batch, depth=depth, state_seed=update).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return model.eval(), loss.item()


@torch.no_grad()
def agreement(model: lw.LoopedForCausalLM, prompts: list[torch.Tensor]) -> dict[str, object]:
    """Returns how many of the prompts get the same tokens cached, replayed (static cache) and uncached, and where they part."""
    options = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    same = {"cached": 0, "static": 0}
    margins = []
    for prompt in prompts:
        plain = model.generate(prompt, use_cache=False, **options)
        for kind, more in (("cached", {}), ("static", {"cache_implementation": "static"})):
            other = model.generate(prompt, **more, **options)
            if torch.equal(other, plain):
                same[kind] += 1
                continue
            first = int((other != plain)[0].nonzero()[0])
            best = model(plain[:, :first]).logits[0, -1].float().topk(2).values
            margins.append({"margin": (best[0] - best[1]).item(), "logit": best[0].item()})
    return {
        "prompts": len(prompts), "new_tokens": NEW, "cached_equal": same["cached"], "static_equal": same["static"],
        "where_they_part": margins,
    }  # fmt: skip


def main() -> None:
    """Runs the check and writes OUT.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("dense", nargs="?")
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    text = gzip.decompress(asked.text.read_bytes())
    model, loss = trained(text[:KNOWN], device)
    rows: dict[str, object] = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "updates": UPDATES,
        "loss": loss,
    }
    pieces = {"known text": text[:KNOWN], "unseen text": text[-KNOWN:]}
    with tempfile.TemporaryDirectory() as folder:
        lw.save(model, Path(folder) / "model")
        for dtype in ("bfloat16", "float32"):
            loaded = lw.load(Path(folder) / "model", dtype=dtype, device=device)
            for name, piece in pieces.items():
                prompts = [torch.tensor([list(piece[i * 2000 : i * 2000 + 48])], device=device) for i in range(PROMPTS)]
                for depth in (2, 4, 8):
                    loaded.config.depth = depth
                    rows[f"looped, {dtype}, {name}, depth {depth}"] = agreement(loaded, prompts)
    if asked.dense:
        dense, tokenizer = lw.load(asked.dense, dtype="bfloat16", device=device), lw.tokenizer(asked.dense)
        starts = ["Once upon a time", "Lily saw", "The dog", "One day, Tom", "There was a", "She was", "Mom said", "The big red"]
        rows["dense, bfloat16"] = agreement(dense, [tokenizer(s, return_tensors="pt").input_ids.to(device) for s in starts])
    asked.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
