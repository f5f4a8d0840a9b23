"""`python -m benchmarks`: every benchmark this machine can run."""

from benchmarks import decode, decode_gpu

decode.main()
decode_gpu.main()
