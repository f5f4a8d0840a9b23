"""`python -m benchmarks`: every benchmark this machine can run."""

from benchmarks import decode, decode_gpu, jacobian, ouro_cost, remat, stars_update, sweep, trace

for benchmark in (decode, sweep, remat, jacobian, decode_gpu, ouro_cost, stars_update, trace):
    benchmark.main()
