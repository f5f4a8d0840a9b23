"""What every number on the command line must be."""

import subprocess
import sys

import pytest
import typer

from loopwright.cli.options import preset_names, recipe_names, seed_of, whole
from loopwright.model.presets import PRESETS


def test_numbers_that_no_machine_word_holds_are_refused():
    assert [whole(n) for n in (None, -5, 0, 2**31 - 1)] == [None, -5, 0, 2**31 - 1]
    assert [seed_of(n) for n in (None, 0, 2**63 - 1)] == [None, 0, 2**63 - 1]
    for function, value in ((whole, 2**31), (whole, -(10**30)), (seed_of, -1), (seed_of, 2**63)):
        with pytest.raises(typer.BadParameter, match=str(value)):
            function(value)


def test_names_that_shells_complete():
    assert preset_names("ouro-") == ["ouro-1.4b", "ouro-1.4b-tiny", "ouro-2.6b", "ouro-2.6b-tiny"]
    assert set(preset_names("")) == {*PRESETS, *(f"{name}-tiny" for name in PRESETS)}
    assert recipe_names("demo-") == ["demo-plain", "demo-stable"] and preset_names("x") == recipe_names("x") == []


@pytest.mark.long
def test_a_shell_completes_without_torch():
    code = (
        "import sys, os, atexit; atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr));"
        "sys.argv[0] = 'loopwright'; os.environ.update(_LOOPWRIGHT_COMPLETE='complete_bash', COMP_CWORD='2',"
        "COMP_WORDS='loopwright ' + sys.argv[1]); from loopwright.cli import main; main()"
    )
    for words, answer in (("inspect asur", "asura\nasura-tiny"), ("train demo-st", "demo-stable")):
        done = subprocess.run([sys.executable, "-c", code, words], capture_output=True, text=True, check=False)
        assert (done.stdout.strip(), done.stderr.strip()) == (answer, "False")
