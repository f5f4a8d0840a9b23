"""`python -m loopwright` answers like the installed command."""

import subprocess
import sys

from loopwright.version import VERSION


def test_module_is_the_command_line():
    done = subprocess.run([sys.executable, "-m", "loopwright", "--version"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, f"loopwright {VERSION}")
