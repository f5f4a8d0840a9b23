"""transformers knows our models once loopwright is imported, in whatever order the two come."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import loopwright as lw
from loopwright.autoregister import AUTO as OURS
from loopwright.autoregister import Announcer

ROOT = Path(__file__).parent.parent
AUTO = "from transformers import AutoConfig, AutoModelForCausalLM"
ORDERS = {
    "transformers first": f"{AUTO}\nimport loopwright",
    # who asks whether it is installed, as many packages do, has not imported it
    "loopwright first": f"import importlib.util, loopwright\nassert importlib.util.find_spec('transformers')\n{AUTO}",
    "our model first": f"from loopwright.model.config import LoopedConfig\n{AUTO}",
    "loopwright twice": f"import importlib, loopwright\nimportlib.reload(loopwright)\n{AUTO}",
    "our tokenizer first": f"import loopwright.data.tokenizer\n{AUTO}",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    lw.save(lw.build("asura-tiny"), place)
    return place


@pytest.mark.parametrize("order", ORDERS)
def test_transformers_opens_our_folders_in_every_order_of_imports(folder: Path, order: str) -> None:
    code = (
        f"{ORDERS[order]}\nimport sys\nfrom loopwright.autoregister import Announcer\n"
        f"print(type(AutoConfig.from_pretrained({str(folder)!r})).__name__,"
        f" type(AutoModelForCausalLM.from_pretrained({str(folder)!r})).__name__,"
        " any(isinstance(finder, Announcer) for finder in sys.meta_path))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["LoopedConfig", "LoopedForCausalLM", "False"]


def test_the_finder_finds_nothing_else() -> None:
    assert all(Announcer(name).find_spec("torch") is None for name in OURS)


@pytest.mark.parametrize("code", ["import loopwright, transformers", "import loopwright; from transformers import AutoConfig"])
def test_whoever_wants_no_model_does_not_wait_for_ours(code: str) -> None:
    heavy = "print('loopwright.model.looped' in sys.modules, 'torch._dynamo' in sys.modules)"
    words = [sys.executable, "-c", f"{code}; import sys; {heavy}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
