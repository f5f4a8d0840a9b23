"""Panels of states: a path is that of the first sum's own states, and a run whose states are not finite has no panel."""

from __future__ import annotations

import pytest
import torch

from experiments.stars.paths import Labelled, named, path_panels, title, with_path
from experiments.stars.run import PATH_STEPS, state_path
from loopwright.data.tasks.addition import Addition
from loopwright.model.presets import build


def test_a_path_is_that_of_the_first_sums_states() -> None:
    torch.manual_seed(0)
    splits = Addition(digits=2, train=4, valid=2, test=2, padding="plain").splits()
    model = build("stars-addition-tiny", vocab_size=splits.vocab_size)
    path = state_path(model, splits.tests["test"])
    batch = splits.tests["test"].batch([0])
    with torch.no_grad():
        e, p = model.embed(batch.input_ids)
        states = [model.start_state(e, p)]
        states += list(model.unroll(e, 5, p, state=states[0]))
    assert len(path["points"]) == len(path["size"]) == PATH_STEPS + 1
    assert path["size"][:6] == pytest.approx([float(s.norm()) for s in states], rel=1e-3)
    apart = torch.dist(*(torch.tensor(path["points"][t]) for t in (0, 5)))
    assert apart <= torch.dist(states[0], states[5]) * 1.001  # a projection makes nothing longer


def test_only_finite_paths_have_a_panel() -> None:
    path = {"size": [1.0, 2.0, 6.0], "explained": [0.9, 0.1], "points": [[0.0, 0.0], [1.0, 0.0], [3.0, 1.0]]}
    lost = {"size": None, "explained": None, "points": None}
    found = with_path({"pre": [{"path": lost}, {"path": path}], "post": [{"path": lost}], "old": [{}]})
    assert found == {"pre": path}
    assert "size 2 → 6; 90 + 10 % of variance" in path_panels(found)


def test_layers_around_the_loop_are_drawn_beside_the_model_without_them() -> None:
    static = ("pre-sandwich 1+core+0", "post-sandwich 1+core+0", "pre-sandwich + 0.1 L2")
    norms = ("pre-sandwich", "pre-sandwich rms")
    groups = {"brief_norms": norms, "brief_static": static}
    found: dict[str, dict[str, Labelled]] = {group: {label: [{}] for label in labels} for group, labels in groups.items()}
    assert [*named(found, "brief_norms")] == ["pre-sandwich layer", "pre-sandwich rms"]
    assert [*named(found, "brief_static")] == ["pre-sandwich 0+core+0", *static]
    assert named({"paths": {"no part": []}}, "paths") == {"no part": []}


@pytest.mark.parametrize(
    ("label", "written"),
    [("pre uniform(1, 40)", "pre\nuniform(1, 40)"), ("λ=0.1 once solved", "λ=0.1\nonce solved"), ("no part, penalty",) * 2],
)
def test_a_placement_or_a_weight_has_a_line_of_its_own(label: str, written: str) -> None:
    assert title(label) == written
