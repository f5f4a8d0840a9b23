"""Parts: per-step tables are read by step or by row, options are the keyword arguments, wrong specs are refused by name."""

import inspect

import pytest
import torch
from torch import nn

from loopwright.model.config import PARTS, LoopedConfig
from loopwright.model.parts.gate import GATES, MixGate
from loopwright.model.parts.part import Part, StepIndex, take, take_width
from loopwright.model.parts.state import STATES, NoiseState
from loopwright.schema import CUSTOM_PART_HINT, build_kind, check_kind, options_of


def test_one_step_and_one_per_row_read_the_same_rows():
    table = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    rows = torch.tensor([2, 0, 2])
    assert torch.equal(take(table, StepIndex(1, 1)), table[1])
    assert torch.equal(take(table, StepIndex(rows, rows)), torch.stack([table[2], table[0], table[2]]))
    x = torch.randn(3, 5, 6)
    assert take_width(table, StepIndex(1, 1)).shape == (6,)
    mixed = x * take_width(table, StepIndex(rows, rows))
    for row, step in enumerate(rows.tolist()):
        assert torch.equal(mixed[row], x[row] * take_width(table, StepIndex(step, step)))


def test_tables_are_read_at_row_not_at_t():
    """Beyond `max_steps` a model that repeats counts t on, and reads its last row."""
    table = torch.arange(3.0)[:, None].expand(3, 2)
    assert torch.equal(take_width(table, StepIndex(7, 2)), torch.tensor([2.0, 2.0]))


def test_a_step_says_which_one_it_is():
    rows = torch.tensor([0, 2])
    assert [repr(StepIndex(t, row)) for t, row in ((2, 2), (7, 2), (rows, rows), (rows + 6, rows))] == [
        "StepIndex(2)", "StepIndex(7, row=2)", "StepIndex([0, 2])", "StepIndex([6, 8], row=[0, 2])",
    ]  # fmt: skip


def test_options_are_the_keyword_arguments_after_the_config():
    options = options_of(NoiseState)
    assert list(options) == ["std", "scale", "seed"]
    assert options["scale"].default == 1.0
    assert options_of(GATES["none"]) == {}


class Needy(Part):
    def __init__(self, config: LoopedConfig, size: int) -> None:
        super().__init__()
        self.size = size


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("noise", "state: 'noise' is not a mapping with a 'kind'; allowed: input, learned, noise, zero"),
        ({}, "state: {} is not a mapping with a 'kind'; allowed: input, learned, noise, zero"),
        (
            {"kind": "nois"},
            f"state: unknown kind 'nois'; did you mean 'noise'? allowed: input, learned, noise, zero; {CUSTOM_PART_HINT}",
        ),
        ({"kind": None}, f"state: unknown kind None; allowed: input, learned, noise, zero; {CUSTOM_PART_HINT}"),
        ({"kind": "noise", "sdt": 1.0}, "state (noise): unknown 'sdt'; did you mean 'std'? allowed: scale, seed, std"),
        ({"kind": "zero", "std": 1.0}, "state (zero): unknown 'std'; allowed: nothing"),
    ],
)
def test_wrong_specs(spec, message):
    with pytest.raises(ValueError) as caught:
        check_kind("state", spec, STATES)
    assert str(caught.value) == message


def test_an_option_without_a_default_must_be_given():
    check_kind("x", {"kind": "needy", "size": 3}, {"needy": Needy})
    with pytest.raises(ValueError, match=r"x \(needy\): missing size"):
        check_kind("x", {"kind": "needy"}, {"needy": Needy})


def test_build_kind_hands_the_options_over():
    part = build_kind({"kind": "mix", "weight": 0.25}, GATES, LoopedConfig())
    assert isinstance(part, MixGate)
    assert part.weight == 0.25


def test_every_kind_is_a_final_part_with_options_of_its_own():
    for table in PARTS.values():
        for name, kind in table.items():
            assert issubclass(kind, Part) and issubclass(kind, nn.Module), name
            assert not kind.__subclasses__(), f"{name} is built, so it must not be subclassed"
            kinds = {p.kind for p in options_of(kind).values()}
            assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}, name
            check_kind(name, {"kind": name}, table)  # every option of every kind has a default
