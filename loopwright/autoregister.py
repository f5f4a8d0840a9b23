"""Our models made known to transformers' Auto classes as soon as somebody imports those, and no sooner: the model is heavy."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# where transformers keeps its Auto classes, and where what is registered there stands; the first need not wait for the second
AUTO = {
    "transformers.models.auto.configuration_auto": "loopwright.model.config",
    "transformers.models.auto.modeling_auto": "loopwright.model.causal_lm",
    "transformers.modeling_layers": "loopwright.model.heads",
}


def autoregister() -> None:
    """Registers our config and models: now where an Auto class is already there, else when it comes."""
    for name in AUTO:
        if name in sys.modules:
            register(name)
        else:
            sys.meta_path.insert(0, Announcer(name))


def register(name: str) -> None:
    """Tells the Auto classes of one module of transformers of what is ours."""
    theirs, ours = sys.modules[name], import_module(AUTO[name])
    if name.endswith("configuration_auto"):
        theirs.AutoConfig.register("loopwright", ours.LoopedConfig, exist_ok=True)
    elif name.endswith("modeling_auto"):
        theirs.AutoModel.register(ours.LoopedConfig, ours.LoopedModel, exist_ok=True)
        theirs.AutoModelForCausalLM.register(ours.LoopedConfig, ours.LoopedForCausalLM, exist_ok=True)
        import_module("transformers.modeling_layers")  # the heads of transformers; it may be what asked for the Auto classes


class Announcer(MetaPathFinder):
    """Finds one module of transformers where the other finders do, and has ours registered right after it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Returns the spec of the module, with our registration behind it; of anything else None."""
        if fullname != self.name:
            return None
        finders = list(sys.meta_path)  # of which the earlier ones were asked, and may be another of us: a reload leaves two
        later = finders[finders.index(self) + 1 :] if self in finders else []
        specs = (finder.find_spec(fullname, path, target) for finder in later)
        spec = next((one for one in specs if one is not None), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            sys.meta_path.remove(self)  # only now: whoever merely asks where it is does not import it
            register(self.name)

        spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
