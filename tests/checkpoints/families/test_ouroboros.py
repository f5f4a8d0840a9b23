"""Files of Ouroboros' public code: nested or flat, with dropout or without, with what halts or without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from loopwright.checkpoints.families.ouroboros import read_parts, renamed
from tests.cases import golden_folders


def golden() -> dict[str, Tensor]:
    return load_file(golden_folders("ouroboros-v2-step")[0] / "sgrc.safetensors")


def nested(flat: dict[str, Tensor]) -> dict[str, Any]:
    """As the trainer saves it: each part's state under its name, numbers beside them."""
    made: dict[str, Any] = {"step": 300_000, "baseline": 8.975}
    for key, value in flat.items():
        part, name = key.split(".", 1)
        made.setdefault(part, {})[name] = value
    return made


def test_nested_and_flat_files_are_the_same(tmp_path: Path) -> None:
    torch.save(nested(golden()), tmp_path / "a.pt")
    save_file(golden(), tmp_path / "a.safetensors")
    found = [read_parts(tmp_path / name) for name in ("a.pt", "a.safetensors")]
    assert set(found[0]) == set(found[1]) == set(renamed(golden()))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    heads = found[0]["adapters.0.heads"]
    assert torch.equal(heads[6:12], golden()["controller.target_heads.k_proj.weight"])


def test_dropout_moves_numbers_and_a_halter_is_read() -> None:
    flat = golden()
    moved = {key.replace("style_net.2.", "style_net.3."): value for key, value in flat.items()}
    assert {n: x.shape for n, x in renamed(moved).items()} == {n: x.shape for n, x in renamed(flat).items()}
    halter = {f"halter.{i}.{part}": torch.zeros(2, 2) for i in (0, 2, 4) for part in ("weight", "bias")}
    assert set(renamed(flat | halter)) - set(renamed(flat)) == {
        f"halting.{name}.{part}" for name in ("first", "second", "last") for part in ("weight", "bias")
    }


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("executed",))


def test_what_is_no_such_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"controller": Evil()}, tmp_path / "evil.pt")
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "no.safetensors").write_bytes(b"no")
    for name in ("evil.pt", "empty.pt", "no.safetensors"):
        with pytest.raises(ValueError, match=r"cannot be read as tensors") as caught:
            read_parts(tmp_path / name)
        assert "\n" not in str(caught.value)
    assert "executed" not in capsys.readouterr().out
    torch.save({"gate": golden()["gate.gate_proj.bias"]}, tmp_path / "gate.pt")
    with pytest.raises(ValueError, match=r"gate.pt: no step_norm.weights; allowed: the controller, gate and step norms"):
        read_parts(tmp_path / "gate.pt")
    short = {key: value for key, value in golden().items() if "style_net.2" not in key}
    save_file(short, tmp_path / "short.safetensors")
    with pytest.raises(ValueError, match=r"no controller.style_net of 2 linear maps"):
        read_parts(tmp_path / "short.safetensors")
