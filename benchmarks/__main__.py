"""Every benchmark this machine can run, one JSON line per row. One alone: python -m benchmarks.NAME, which has a --help too."""

from benchmarks import (
    decode,
    decode_gpu,
    early_exit,
    engine,
    few_tokens,
    jacobian,
    modulation,
    ouro_cost,
    remat,
    stars_update,
    sweep,
    trace,
)
from benchmarks.pairs import no_options

no_options(__doc__)
for benchmark in (
    decode,
    engine,
    early_exit,
    sweep,
    remat,
    jacobian,
    modulation,
    decode_gpu,
    few_tokens,
    ouro_cost,
    stars_update,
    trace,
):
    benchmark.main()
