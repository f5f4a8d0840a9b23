"""`python -m benchmarks`: every benchmark this machine can run."""

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
