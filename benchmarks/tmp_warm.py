"""Compiles what benchmarks.modulation compiles, one part of it a process; or profiles a controller."""
import sys
from functools import partial

import torch

import benchmarks.modulation as m

width, what, mode = int(sys.argv[1]), sys.argv[2], sys.argv[3]
runs = {"layer": m.layer_runs, "controller": m.step_runs}[what]
x = torch.randn(4, 2048, width).to(device="cuda", dtype=torch.bfloat16)
if mode == "profile":
    made = runs(width, 4, 2048, "cuda", torch.bfloat16, (lambda f: f) if sys.argv[4:] else partial(torch.compile, dynamic=False))
    call = m.forward(made["modulated"], x)
    for _ in range(3):
        call()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof:
        call()
        torch.cuda.synchronize()
    rows = sorted(prof.key_averages(), key=lambda e: -e.self_device_time_total)[:24]
    for e in rows:
        print(f"{e.self_device_time_total:9.1f} us  x{e.count:3d}  {e.key[:110]}")
    sums = torch.randn(4, 2048, 256, device="cuda")
    for name, f in (("cumsum(1)", lambda: sums.cumsum(1)), ("transposed", lambda: sums.transpose(1, 2).cumsum(2).transpose(1, 2))):
        from benchmarks.modulation_candidates import microseconds

        print(name, microseconds(f))
    sys.exit()
made = runs(width, 4, 2048, "cuda", torch.bfloat16, partial(torch.compile, dynamic=False))
for name in made:
    call = getattr(m, mode)(made[name], x)
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    print(name, "compiled", flush=True)
