"""Planted mistakes over weights: labels shifted wrongly, parameters that never learn, files that lose tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import loopwright as lw
import loopwright.model.causal_lm
from loopwright.model.parts.injection import Injection
from loopwright.model.parts.part import StepIndex
from tests.evaluation.foreign import Foreign
from tests.own_kinds import own_kinds

FILE_ROWS = ("label alignment", "state between calls", "gradients", "save and load")


def detail(report: lw.CheckReport, name: str) -> str:
    return next(row.detail for row in report.rows if row.name == name)


class Twice(Foreign):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return super().loss(logits[:, :-1], labels[:, 1:])


class Never(Foreign):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Summed(Foreign):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return 2 * super().loss(logits, labels)


class Silent(Foreign):
    def loss(self, logits: Tensor, labels: Tensor) -> Any:
        return None


@pytest.mark.parametrize(
    ("kind", "words"),
    [(Twice, "labels shifted twice"), (Never, "labels not shifted"), (Summed, "none of"), (Silent, "no loss came back")],
)
def test_a_wrong_loss_fails_label_alignment(kind: type[Foreign], words: str) -> None:
    report = lw.check(kind())
    assert report.failed == ("label alignment",) and words in detail(report, "label alignment")


@pytest.mark.parametrize(
    ("dtype", "names"),
    [
        pytest.param(torch.float32, None, marks=pytest.mark.slow),
        (torch.bfloat16, ("finite logits", "label alignment", "last step answers")),
        pytest.param(torch.bfloat16, None, marks=pytest.mark.slow),  # all others pass there too, which takes seconds
    ],
)
def test_a_double_shift_in_our_own_model_fails(
    dtype: torch.dtype, names: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = loopwright.model.causal_lm.next_token_loss
    monkeypatch.setattr(
        loopwright.model.causal_lm, "next_token_loss", lambda logits, labels, **how: right(logits[:, :-1], labels[:, 1:], **how)
    )
    torch.manual_seed(0)
    report = lw.check(lw.build("retrofit-llama-1b-tiny", initializer_range=0.1).to(dtype), names=names)
    assert report.failed == ("label alignment",) and "shifted twice" in detail(report, "label alignment")


def test_state_left_in_a_buffer_fails_and_is_put_back() -> None:
    class Leaving(Foreign):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("memory", torch.zeros(16))

        def start(self, x: Tensor) -> Tensor:
            start = x + self.memory
            self.memory += x.detach().mean((0, 1)) * 0.01
            self.memory = self.memory * 0.9
            return start

    model = Leaving()
    report = lw.check(model)
    assert "state between calls" in report.failed
    assert not model.memory.any()


def test_state_left_by_a_cached_call_alone_fails() -> None:
    class Keeping(Foreign):
        kept: Tensor | None = None

        def attend(self, s: Tensor, visible: Tensor, cache: dict, held: dict, slot: int) -> Tensor:
            if cache:
                self.kept = s.detach().mean()
            return super().attend(s, visible, cache, held, slot) + (0 if self.kept is None else 0.01 * self.kept)

    assert lw.check(Keeping(), names=["state between calls"]).failed


class Unused(Foreign):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(3, 3)


class Detached(Foreign):
    def start(self, x: Tensor) -> Tensor:
        return x

    def attend(self, *args: Any) -> Tensor:
        return super().attend(*args).detach()


class Exploding(Foreign):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((16,), 0.0))

    def start(self, x: Tensor) -> Tensor:
        return x + (self.scale - self.scale.detach()).abs().sqrt()


@pytest.mark.parametrize(
    ("kind", "words"),
    [(Unused, "spare.weight (none), spare.bias (none)"), (Detached, "qkv.weight (none)"), (Exploding, "not finite")],
)
def test_a_parameter_without_gradient_fails(kind: type[Foreign], words: str) -> None:
    report = lw.check(kind())
    assert report.failed == ("gradients",) and words in detail(report, "gradients")


def test_a_frozen_parameter_needs_no_gradient() -> None:
    model = Unused()
    model.spare.requires_grad_(False)
    assert lw.check(model).ok
    report = lw.check(model.requires_grad_(False))
    assert report.ok and "no parameter is trainable" in detail(report, "gradients")


def test_a_step_table_row_that_is_never_read_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from loopwright.model.parts.part import StepIndex

    monkeypatch.setattr(
        lw.LoopedForCausalLM, "step_index", lambda self, t: StepIndex(t, t.clamp(max=1) if isinstance(t, Tensor) else min(t, 1))
    )
    torch.manual_seed(0)
    report = lw.check(lw.build("asura-tiny"), names=FILE_ROWS)
    assert report.failed == ("gradients",) and "[2] (zero)" in detail(report, "gradients")


class Gains(Injection):
    """The state times a row of gains for each step; `read` says how many of the rows are ever read."""

    per_step = True

    def __init__(self, config: lw.LoopedConfig, read: int = 6) -> None:
        super().__init__()
        self.read = read
        self.gains = nn.Parameter(torch.ones(config.max_steps, config.hidden_size))

    def start(self) -> None:
        nn.init.ones_(self.gains)

    def forward(self, s: Tensor, e: Tensor, step: StepIndex) -> Tensor:
        assert isinstance(step.row, int)
        return s * self.gains[min(step.row, self.read - 1)]


@pytest.mark.parametrize(
    "halting",
    [{"kind": "universal-act", "bias": 3.0}, {"kind": "act", "bias": 3.0}, {"kind": "halter", "bias": 3.0}, {"kind": "exit"}],
    ids=lambda halting: halting["kind"],
)
def test_rows_of_steps_that_halting_never_reaches_are_no_fault(halting: dict[str, Any]) -> None:
    with own_kinds():
        lw.register("injection", "gains")(Gains)
        changes = {"max_steps": 6, "depth": 6, "halting": halting, "read_out": "last"}
        model = lw.build("universal-tiny", injection={"kind": "gains"}, **changes)
        weights = model(torch.tensor([[3, 4, 5, 6]]), use_cache=False).exit_probs
        assert bool((weights[..., 3:] == 0).all()) == (halting["kind"] != "exit")  # the others halt after two steps
        assert lw.check(model, names=("gradients",)).ok
        model = lw.build("universal-tiny", injection={"kind": "gains", "read": 4}, **changes)
        report = lw.check(model, names=("gradients",))
        assert report.failed == ("gradients",)
        assert "injection.gains[4] (zero), injection.gains[5] (zero); of" in detail(report, "gradients")


@pytest.mark.long
def test_parts_that_start_without_effect_still_learn() -> None:
    torch.manual_seed(0)
    report = lw.check(lw.build("relaxed-tiny"))
    assert report.ok and "all-zero parameters" in report.rows[0].detail


@pytest.mark.parametrize(
    "lost", ["core.0.mlp.up_proj.weight", pytest.param("core.0.mlp_norms.input.weight", marks=pytest.mark.slow)]
)
def test_a_save_that_loses_a_tensor_fails(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a norm's weight, which loading fills with the same ones it held."""
    save = lw.LoopedForCausalLM.save_pretrained

    def losing(self: lw.LoopedForCausalLM, folder: Path, **options: Any) -> None:
        save(self, folder, **options)
        tensors = load_file(folder / "model.safetensors")
        del tensors[lost]
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    monkeypatch.setattr(lw.LoopedForCausalLM, "save_pretrained", losing)
    torch.manual_seed(0)
    report = lw.check(lw.build("ouro-1.4b-tiny"), names=FILE_ROWS)
    assert report.failed == ("save and load",)
    assert f"missing keys after loading: {lost}" in detail(report, "save and load")


def test_a_save_that_rounds_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    save = lw.LoopedForCausalLM.save_pretrained

    def rounding(self: lw.LoopedForCausalLM, folder: Path, **options: Any) -> None:
        rounded = {name: value.bfloat16().float() for name, value in self.state_dict().items()}
        save(self, folder, state_dict=rounded, **options)

    monkeypatch.setattr(lw.LoopedForCausalLM, "save_pretrained", rounding)
    torch.manual_seed(0)
    report = lw.check(lw.build("ouro-1.4b-tiny"), names=FILE_ROWS)
    assert report.failed == ("save and load",) and "came back different" in detail(report, "save and load")
