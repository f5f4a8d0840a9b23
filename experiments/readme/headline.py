"""What the README's table of headline results says: the studies' own numbers, in short."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.ouroboros.plan import BEST_ONCE, BEST_STATIC
from experiments.pages import percent
from experiments.readme import speed
from experiments.readme.inside import orbits
from experiments.readme.retrofit import cores, language, ouroboros, own_rates, rates_again
from experiments.readme.rows import when
from experiments.readme.tasks import hops, stars
from experiments.readme.text import asura, asura_parts, asura_text, depths, repeats, whole_text

SETTINGS = (
    "where its 95 % interval over seeds (three, unless another number is given) excludes 0",
    "Four digits at depth 1,000, seeds side by side",
    "when trained at fixed depth 4",
    "from depth 4 to 16 with a fixed depth of 4",
    "trained on 4 to 8 digits, it adds numbers of 64",
    "SmolLM2-135M was cut from 30 to 15 layers",
    "all weights trained (14 layers kept)",
    "Of six loops of 1, 3 or 6 layers",
    "A looped SmolLM2, fine-tuned",
    "On chats at a fixed depth of 4",
    "In SmolLM2-135M the later stages vanish",
    "Ouro-1.4B's shape at depth 4 and batch 1 (random weights)",
    "of an H200",
)


def claims() -> Iterator[str]:
    """Yields what the rows say."""
    yield f"{stars.exact_at('ours', 1000)} % right with"
    released = stars.exact_at("paper: random depth + penalty", 1000)
    yield f"{released} % with STARS (random depth and a penalty on the Jacobian of a step) as released"
    yield f"; {stars.exact_at('paper: fixed depth 4', 1000)} %"
    ahead, verdict, p = stars.released()
    yield f"{'better' if min(ahead) > 0 else 'not better'} on each seed, {verdict} (p = {p:.2f} at depth 1,000)"
    yield f"At our settings {stars.without_penalty()} seeds are 100 % right without it as well"
    yield from language.headline_claims()
    least, random, rows, seeds = stars.longer()
    yield f"(at least {100 * least:.1f} % of {rows} rows with long carries, {seeds} seeds; random digits: {100 * min(random):.1f} %"
    yield from own_rates.headline_claims()
    yield from rates_again.headline_claims()
    looped, once = (percent(ouroboros.share(name, "test")) for name in (BEST_STATIC, BEST_ONCE))
    apart, first = ouroboros.behind_once(BEST_STATIC)
    yield f"recovers {looped} of the gap to the intact model"
    yield f"the same layers run once {once} ({apart:.3f} nats apart, {first})"
    yield cores.headline()
    yield f"At one rate for all, yes at nearly equal parameters and equal updates ({asura.at_equal_parameters()})"
    small, middle, chance, decided = asura.equal_flops()
    size = f"behind by {small:.3f} at the small size ({asura.small_flops()})"
    yield f"{size} and ahead by {middle:.3f} at the middle one ({chance}, {decided})"
    yield asura_text.short()
    yield asura_parts.short()
    yield asura.no_skip()
    yield f"one layer run eight times {hops.same_task()}"
    yield when(hops.none_far(), "no model answers 24 hops")
    yield from repeats.short()
    yield whole_text.short()
    yield depths.short()
    yield from orbits.headline()
    yield f"reaches {speed.share_of_bound(1):.2f} of the bandwidth bound"
    yield f"and {speed.share_of_bound(32):.2f} at batch 32"
    yield f"requests at depths 1 to 8 with {speed.mixed_depths(128):.2f} times the tokens/s of lockstep batches at depth 8"
    yield "(answers of 128 tokens)"
