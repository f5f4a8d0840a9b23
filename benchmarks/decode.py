"""P8: a cached decode step against an uncached forward of the same 512 tokens. P9: what the cache's bookkeeping costs of it.

P9 times the decode step as it is against the same step with the cache's writes replaced by ready-made views of keys and
values, so the difference is all the cache does per layer; the ratio less one is its share of the step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

import loopwright as lw
from benchmarks.pairs import compare, no_options, report

CONTEXT, DEPTH = 512, 4
# half of Ouro-1.4B's width and a quarter of its layers: a decode step is bound by reading weights, as in the real one
SHAPE = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 8,
    "core_layers": 6,
    "vocab_size": 8192,
    "depth": DEPTH,
}
SMALL = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_attention_heads": 4,
    "core_layers": 4,
    "vocab_size": 2048,
    "depth": DEPTH,
}


def models() -> dict[str, lw.LoopedForCausalLM]:
    """Returns the random models that are timed, by name."""
    torch.manual_seed(0)
    return {"ouro-half": lw.build("ouro-1.4b", **SHAPE), "ouro-small": lw.build("ouro-1.4b", **SMALL)}


@torch.no_grad()
def main() -> None:
    """Prints P8 and P9 for both sizes."""
    for name, model in models().items():
        ids = torch.randint(0, model.config.vocab_size, (1, CONTEXT))
        cache = lw.LoopCache(model.config, capacity=CONTEXT + 8, fixed=True)
        model(ids[:, :-1], past_key_values=cache, logits_to_keep=1)

        def step(model: lw.LoopedForCausalLM = model, cache: lw.LoopCache = cache, ids: torch.Tensor = ids) -> None:
            model(ids[:, -1:], past_key_values=cache, logits_to_keep=1)
            cache.crop(-1)

        def whole(model: lw.LoopedForCausalLM = model, ids: torch.Tensor = ids) -> None:
            model(ids, logits_to_keep=1, use_cache=False)

        report("P8 cached decode / uncached forward", {"model": name, "target": "<= 0.04", **compare(step, whole, pairs=9)})
        row = compare(step, without_bookkeeping(step, cache), pairs=101, warm_up=10)
        share = {f"share{k.removeprefix('ratio')}": 1 - 1 / v for k, v in row.items() if k.startswith("ratio")}
        report(
            "P9 cache share of a decode step",
            {"model": name, "target": "<= 0.02", **share, "a_ms": row["a_ms"], "b_ms": row["b_ms"]},
        )


def without_bookkeeping(step: Callable[[], None], cache: lw.LoopCache) -> Callable[[], None]:
    """Returns the decode step with the cache's writes replaced by views made beforehand. For models without a coda."""
    views = [(k[:, :CONTEXT], v[:, :CONTEXT]) for k, v in zip(cache.keys.views, cache.values.views, strict=True)]
    kept = {name: getattr(lw.LoopCache, name) for name in ("write", "check", "reserve", "begin_step")}
    first, per_step = cache.config.prelude_layers, cache.config.core_layers
    lean_calls = {
        "write": lambda self, place, key, value, p: views[first + place.step.t * per_step + place.layer],
        "check": lambda self, depth, readings: None,
        "reserve": lambda self, span, depth, like: None,
        "begin_step": lambda self, t: None,
    }

    def lean() -> None:
        for name, call in lean_calls.items():
            setattr(lw.LoopCache, name, call)
        try:
            step()
        finally:
            for name, call in kept.items():
                setattr(lw.LoopCache, name, call)

    return lean


if __name__ == "__main__":
    no_options(__doc__)
    main()
