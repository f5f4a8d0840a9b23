"""What holds for every test process.

One thread each: two workers on two cores would fight over them. No oneDNN: on ARM it takes forty times as long as BLAS for
the small products of tiny models (0.6 ms for 28 × 32 × 32), and the suite is made of them.
"""

import gc
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Sets up a process that runs tests; the one that only hands them out needs no torch."""
    if config.getoption("numprocesses", None):
        return
    import torch
    from hypothesis import settings

    settings.register_profile("untimed", deadline=None)  # how long an example takes says how busy the machine is
    settings.load_profile("untimed")
    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = False
    if not torch.accelerator.is_available():  # torch would keep each seed, with a formatted stack, for a device that never comes
        torch.cuda.manual_seed_all = torch.xpu.manual_seed_all = torch.mtia.manual_seed_all = lambda seed: None
    for kind in (torch.nn.Linear, torch.nn.Embedding):
        _draw_no_meta(kind)
    gc.disable()  # importing makes a million objects and hardly any garbage


def _draw_no_meta(kind: Any) -> None:
    """Torch draws start values on the meta device in Python, half of the time of a model there, and keeps none of them."""
    draw = kind.reset_parameters
    kind.reset_parameters = lambda self: None if self.weight.is_meta else draw(self)


def pytest_collection_finish() -> None:
    """Takes what importing made, a million objects that stay, out of every later search for garbage: a tenth of the time."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.fixture
def unlaid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures without matplotlib's search for a layout, half of their time, where no test asks where things stand."""
    monkeypatch.setattr("matplotlib.layout_engine.ConstrainedLayoutEngine.execute", lambda self, figure: None)


@pytest.fixture
def few_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Studies with a rough spectrum, which is most of their time, where no test reads it."""
    monkeypatch.setattr("loopwright.analysis.trace.single_prompt.KRYLOV", 4)
