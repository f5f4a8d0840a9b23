"""Places: index and name are each other's inverse, and the order is that in which layers run."""

from hypothesis import given
from hypothesis import strategies as st

from loopwright.analysis.trace.places import Places
from loopwright.model.taps import Recorder
from tests.cases import noisy

COUNTS = st.integers(0, 4)


@given(COUNTS, st.integers(1, 4), COUNTS, st.integers(1, 5))
def test_index_and_name_are_inverse(prelude: int, core: int, coda: int, steps: int):
    places = Places(prelude, core, coda, steps)
    assert [places.index(*places.name(i)) for i in range(places.count)] == list(range(places.count))
    assert all(places.name(i)[0] == "core" for i in range(places.count)[places.looped])
    assert len(range(places.count)[places.looped]) == core * steps


def test_places_are_in_the_order_of_the_pass():
    import torch

    model, recorder = noisy("huginn-tiny"), Recorder(("residual",))
    model(torch.tensor([[1, 2, 3]]), depth=3, tap=recorder)
    places = Places.of(model.config, 3)
    assert [places.name(i) for i in range(places.count)] == [key[1:] for key in recorder.seen]


def test_one_step_is_a_whole_pass_of_depth_one():
    places = Places(2, 3, 1, 4)
    assert [places.name(i) for i in places.one_step(2)] == [
        ("prelude", 0, 0), ("prelude", 0, 1), ("core", 2, 0), ("core", 2, 1), ("core", 2, 2), ("coda", 0, 0),
    ]  # fmt: skip
