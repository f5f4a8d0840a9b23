"""transformers knows our models once loopwright is imported, in whatever order the two come."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import loopwright as lw
from loopwright.autoregister import AUTO as OURS
from loopwright.autoregister import Announcer

ROOT = Path(__file__).parent.parent
AUTO = "from transformers import AutoConfig, AutoModel, AutoModelForCausalLM"
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


# one process that has loaded what costs most of a start, and knows neither loopwright nor transformers, forks before each order
FORKED = """
import json, os, sys, torch._dynamo, torch.distributed.tensor
for name, code in json.loads(sys.argv[1]).items():
    assert not {"loopwright", "transformers"} & set(sys.modules)
    if os.fork() == 0:
        exec(code)
        from loopwright.autoregister import Announcer
        opened = [type(auto.from_pretrained(sys.argv[2])).__name__ for auto in (AutoConfig, AutoModel, AutoModelForCausalLM)]
        waiting = any(isinstance(finder, Announcer) for finder in sys.meta_path)
        print(name, *opened, waiting, sep=",", flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.slow
def test_transformers_opens_our_folders_in_every_order_of_imports(folder: Path) -> None:
    words = [sys.executable, "-c", FORKED, json.dumps(ORDERS), str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    expected = [f"{order},LoopedConfig,LoopedModel,LoopedForCausalLM,False" for order in ORDERS]
    assert done.stdout.splitlines() == expected, done.stderr


def test_the_finder_finds_nothing_else() -> None:
    assert all(Announcer(name).find_spec("torch") is None for name in OURS)


@pytest.mark.long
def test_whoever_wants_no_model_does_not_wait_for_ours_and_who_wants_one_gets_it(folder: Path) -> None:
    heavy = "print('loopwright.model.causal_lm' in sys.modules, 'torch._dynamo' in sys.modules)"
    code = f"import sys, loopwright, transformers; {heavy}; from transformers import AutoConfig; {heavy}"
    code += "; print(type(AutoConfig.from_pretrained(sys.argv[1])).__name__)"
    done = subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"] * 4 + ["LoopedConfig"]
