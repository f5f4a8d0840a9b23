"""`python -m benchmarks`: every benchmark this machine can run."""

from benchmarks import decode, decode_gpu, engine, jacobian, modulation, ouro_cost, remat, stars_update, sweep, trace

for benchmark in (decode, engine, sweep, remat, jacobian, modulation, decode_gpu, ouro_cost, stars_update, trace):
    benchmark.main()
