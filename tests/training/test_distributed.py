"""Who asks for which spread; what several processes do is tested in test_distributed.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env
from torch import nn

import loopwright.recipes
from loopwright.training import distributed as module
from loopwright.training.distributed import PROCESSES, Single, asked_for, join

LAUNCH = Path(loopwright.recipes.__file__).parent / "launch"


def test_one_process_alone_agrees_with_itself() -> None:
    alone = join()
    assert isinstance(alone, Single) and alone.main and (alone.rank, alone.world) == (0, 1)
    net, x = nn.Linear(2, 2), torch.randn(3)
    assert alone.wrap(net) is net and torch.equal(alone.sum(x), x) and alone.totals(3, 4) == [3, 4]
    assert alone.anywhere(True) and not alone.anywhere(False)
    before = [p.clone() for p in net.parameters()]
    with alone.gathered(), alone.syncing(last=False), alone.main_first():
        pass
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_what_a_launcher_writes_into_the_environment_decides() -> None:
    assert asked_for({}) == asked_for({"ACCELERATE_USE_FSDP": "false"}) == "ddp"
    assert asked_for({"ACCELERATE_USE_FSDP": "true"}) == "fsdp"
    zero = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2"}
    assert asked_for(zero) == "fsdp" and asked_for({**zero, "ACCELERATE_DEEPSPEED_ZERO_STAGE": "0"}) == "ddp"
    assert set(PROCESSES) == {"single", "ddp", "fsdp"}


@pytest.mark.parametrize(
    "environment",
    [
        {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1"},
        {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_OFFLOAD_PARAMS": "true"},
        {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu"},
    ],
)
def test_what_is_not_offered_is_refused_in_one_line(environment: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"^launch: .*allowed: ") as caught:
        asked_for(environment)
    assert "\n" not in str(caught.value)


def test_a_launcher_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(cpu: bool) -> None:
        raise ImportError("DeepSpeed is not available")

    monkeypatch.setattr(module, "PartialState", missing)
    with pytest.raises(ValueError, match=r"^launch: DeepSpeed is not available; allowed: launch/fsdp2.yaml"):
        join()


@pytest.mark.parametrize(("name", "kind"), [("ddp", "ddp"), ("fsdp2", "fsdp")])
def test_the_shipped_configurations_ask_for_what_they_say(name: str, kind: str) -> None:
    words = ["--config_file", str(LAUNCH / f"{name}.yaml"), "-m", "loopwright", "train", "demo-stable"]
    asked, *_ = _validate_launch_command(launch_command_parser().parse_args(words))
    environment = prepare_multi_gpu_env(asked)
    assert asked_for(environment) == kind and environment["ACCELERATE_MIXED_PRECISION"] == "no", "the recipe decides"


def test_every_shipped_configuration_is_one_that_accelerate_reads() -> None:
    found = {path.stem: load_config_from_file(str(path)) for path in LAUNCH.glob("*.yaml")}
    assert set(found) == {"ddp", "fsdp2", "deepspeed-zero2"}
    assert found["deepspeed-zero2"].deepspeed_config["zero_stage"] == 2
