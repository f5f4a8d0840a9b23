"""The processes of a run: a single one, copies of the model (DDP), or shards of it (FSDP2).

A launcher (`accelerate launch`, `torchrun`) starts the processes and says in the environment what it was asked for; nothing
else does. The loop asks for sums and contexts here and reads like one process.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from accelerate import PartialState
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from loopwright.schema import differences
from loopwright.untrusted import shown

NAMED = 3  # differences between processes that a message names


class Processes:
    """The processes of a run, seen from one of them. Abstract: a kind says what stands in the place of the trained module.

    `rank` of `world` processes; `main` is the one that writes files; `device` is the process's own.
    """

    def __init__(self, state: PartialState) -> None:
        self.state = state
        self.rank, self.world, self.main = state.process_index, state.num_processes, state.is_main_process
        self.device: torch.device = state.device

    def wrap(self, module: nn.Module) -> nn.Module:
        """Returns what is called in the place of the module; its parameters may be others from then on. Called once."""
        raise NotImplementedError

    def syncing(self, last: bool) -> AbstractContextManager[None]:
        """Returns the context of one batch of an update: gradients travel between processes at the last one only."""
        raise NotImplementedError

    def gather(self) -> None:
        """Makes the parameters of the wrapped module whole in every process; all must call it."""

    def scatter(self) -> None:
        """Undoes `gather`; what was written into whole parameters is lost."""

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """The parameters whole for a while; all processes must enter."""
        self.gather()
        try:
            yield
        finally:
            self.scatter()

    def sum(self, values: Tensor) -> Tensor:
        """Returns the sum of a tensor over all processes."""
        total = values.detach().clone().to(self.device)
        dist.all_reduce(total)
        return total

    def totals(self, *numbers: int) -> list[int]:
        """Returns the sums of whole numbers over all processes."""
        return self.sum(torch.tensor(numbers, dtype=torch.int64)).tolist()

    def anywhere(self, flag: bool) -> bool:
        """Returns whether a flag is set in any process: all get the same answer."""
        return self.totals(int(flag))[0] > 0

    def check_same(self, facts: Mapping[str, Any]) -> None:
        """Raises a ValueError, in every process, where plain data are not the same in all of them: what differs, and in which."""
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
        if len(set(self._of_all(digest))) > 1:
            differing = list(islice(differences(self._of_all(facts)), NAMED))
            which = "; ".join(f"{path} is {_by_rank(values)}" for path, values in differing)
            remedy = "start all with one recipe, on the same data, files and versions"
            raise ValueError(f"launch: the processes of this run differ: {which}; {remedy}")

    def _of_all(self, mine: Any) -> list[Any]:
        """Returns an object of each process, by rank."""
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, mine)
        return values

    def wait(self) -> None:
        """Returns when all processes have come here."""
        self.state.wait_for_everyone()

    def main_first(self) -> AbstractContextManager[None]:
        """Returns a context that the main process leaves before the others enter."""
        return self.state.main_process_first()


class Single(Processes):
    """One process: nothing to agree on."""

    def wrap(self, module: nn.Module) -> nn.Module:
        return module

    def syncing(self, last: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def sum(self, values: Tensor) -> Tensor:
        return values

    def totals(self, *numbers: int) -> list[int]:
        return list(numbers)

    def check_same(self, facts: Mapping[str, Any]) -> None:
        pass


class DDP(Processes):
    """Every process has the whole model; gradients are averaged (DDP)."""

    def wrap(self, module: nn.Module) -> nn.Module:
        devices = [self.device] if self.device.type == "cuda" else None
        # unused: a halting head that the objective does not read, a prelude that a truncated gradient does not reach
        self.module = DistributedDataParallel(module, device_ids=devices, find_unused_parameters=True, gradient_as_bucket_view=True)
        return self.module

    def syncing(self, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else self.module.no_sync()


class FSDP(Processes):
    """Every process keeps its share of each parameter, its gradient and its optimiser state (FSDP2).

    All parameters form one group: gathered when a pass begins, kept until its backward ends. The core runs many times in
    between (once more when it is rematerialised), so that to give it back after each step would gather it anew each time.
    """

    def wrap(self, module: nn.Module) -> nn.Module:
        mesh = init_device_mesh(self.device.type, (self.world,))
        self.module: FSDPModule = fully_shard(module, mesh=mesh)
        return module

    @contextmanager
    def syncing(self, last: bool) -> Iterator[None]:
        self.module.set_requires_gradient_sync(last)
        try:
            yield
        finally:
            self.module.set_requires_gradient_sync(True)

    def gather(self) -> None:
        self.module.unshard()

    def scatter(self) -> None:
        self.module.reshard()


def _by_rank(values: Sequence[Any]) -> str:
    """A value of each rank in words: those that are alike together."""
    ranks: dict[str, list[str]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault("not there" if value is None else shown(value), []).append(str(rank))
    return ", ".join(f"{value} in rank{'s' * (len(which) > 1)} {_listed(which)}" for value, which in ranks.items())


def _listed(ranks: Sequence[str]) -> str:
    return " and ".join(ranks) if len(ranks) < 5 else f"{', '.join(ranks[:3])} and {len(ranks) - 3} more"


def join(environment: Mapping[str, str] = os.environ) -> Processes:
    """Joins the processes that a launcher started and returns how the run is spread over them; one alone without a launcher."""
    kind = asked_for(environment)
    cpu = _is_set(environment, "ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
    try:
        state = PartialState(cpu=cpu)
    except ImportError as error:
        raise ValueError(
            f"launch: {error}; allowed: launch/fsdp2.yaml, which divides the memory alike and needs torch only"
        ) from None
    return PROCESSES[kind if state.num_processes > 1 else "single"](state)


def asked_for(environment: Mapping[str, str]) -> str:
    """Returns which kind of distribution the environment asks for.

    What DeepSpeed calls ZeRO 1 to 3 is done by torch's own shards: the memory is divided alike, and DeepSpeed's engine would
    move the parameters in its backward pass, before anybody could see that a gradient is not finite.
    """
    if _is_set(environment, "FSDP_OFFLOAD_PARAMS") or _offloads(environment):
        raise ValueError("launch: parameters or optimiser state are to be kept on the CPU (offload); allowed: no offload")
    if _is_set(environment, "ACCELERATE_USE_FSDP"):
        if environment.get("FSDP_VERSION", "2") != "2":
            raise ValueError(f"launch: FSDP_VERSION (fsdp_version) is {environment['FSDP_VERSION']}; allowed: 2")
        return "fsdp"
    if _is_set(environment, "ACCELERATE_USE_DEEPSPEED"):
        return "ddp" if environment.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2") == "0" else "fsdp"
    return "ddp"


def _offloads(environment: Mapping[str, str]) -> bool:
    names = ("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE")
    used = _is_set(environment, "ACCELERATE_USE_DEEPSPEED")
    return used and any(environment.get(name, "none") != "none" for name in names)


def _is_set(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "false").lower() in ("true", "1", "yes")


PROCESSES: dict[str, type[Processes]] = {"single": Single, "ddp": DDP, "fsdp": FSDP}
