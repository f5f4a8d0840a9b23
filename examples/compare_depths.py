"""Is more depth worth it? One model at two depths on the same rows, paired, and a figure over all depths.

python examples/compare_depths.py runs/demo/stable addition.svg      # a run of `loopwright demo`, and the figure to write
"""

import sys

from rich import print

import loopwright as lw

run, figure = sys.argv[1], sys.argv[2]
depths = [1, 2, 3, 4, 6, 8]
found = lw.evaluate(run, depths=depths, splits=["test"])
print(found.table())
found.plot(figure)
print(lw.compare(run, run, depths=(depths[-1], 1), splits=["test"]).table())
