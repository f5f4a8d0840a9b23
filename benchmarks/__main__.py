"""`python -m benchmarks`: every benchmark this machine can run."""

from benchmarks import decode, decode_gpu, jacobian, ouro_cost, remat, sweep

for benchmark in (decode, sweep, remat, jacobian, decode_gpu, ouro_cost):
    benchmark.main()
