"""Equalities over weights: the loss is the loss, every trainable parameter learns, and files hold all of it."""

from __future__ import annotations

import filecmp
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from loopwright.checking.probes import NotOfferedError, Probe, ProbeResult, Tally, Verdict, same_bits

SHOWN_NAMES = 4
IGNORED = -100
LOSS_SHARE = 0.25  # of a logit's tolerance: both losses come from the same logits, only their mean is rounded


def state_between_calls(probe: Probe) -> Verdict:
    """A call = the same call after other calls, cached ones included: nothing is kept in the model."""
    tally, ids = probe.tally(), probe.ids(2)
    want = probe.logits(ids)
    probe.logits(probe.ids(3, probe.length - 2, seed=3))
    if probe.offers("past_key_values") and not (probe.own is not None and probe.own.leaks_future):
        try:
            probe.cached_logits(probe.ids(2, seed=4), [3, 2])
        except NotOfferedError:
            tally.notes.append("no cached call between")
    tally.same("the same ids before and after other calls", probe.logits(ids), want)
    return tally.verdict()


def label_alignment(probe: Probe) -> Verdict:
    """The loss = the mean cross-entropy of the returned logits with labels shifted by one, ignored labels left out."""
    probe.need("labels")
    ids = probe.ids(2)
    labels = ids.clone()
    labels[0, :3] = IGNORED
    answer = probe.call(ids, options={"labels": labels})
    if answer.loss is None:
        return Verdict(False, "labels were given and no loss came back")
    loss = float(answer.loss)
    losses = _shifted_losses(answer.logits.float(), labels)
    want = losses["shifted once"]
    tolerance = probe.tally().relative * LOSS_SHARE * max(1.0, want)
    nearest = min(losses, key=lambda name: abs(losses[name] - loss))
    numbers = f"loss {loss:.6f}, by hand {want:.6f}, tolerance {tolerance:.1e}"
    if nearest == "shifted once" and abs(loss - want) <= tolerance:
        return Verdict(True, numbers)
    matched = abs(losses[nearest] - loss) <= tolerance and nearest != "shifted once"
    return Verdict(False, f"{numbers}; " + (f"labels {nearest}" if matched else f"it is none of: {', '.join(losses)}"))


def _shifted_losses(logits: Tensor, labels: Tensor) -> dict[str, float]:
    def loss(scores: Tensor, targets: Tensor) -> float:
        return float(F.cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=IGNORED))

    return {
        "shifted once": loss(logits[:, :-1], labels[:, 1:]),
        "not shifted": loss(logits, labels),
        "shifted twice": loss(logits[:, :-2], labels[:, 2:]),
        "shifted the wrong way": loss(logits[:, 1:], labels[:, :-1]),
    }


def gradients(probe: Probe) -> Verdict:
    """The gradient of the loss is finite, and not all zero, for every trainable parameter and every row of per-step tables."""
    named = {n: p for n, p in probe.model.named_parameters() if p.requires_grad}
    if not named:
        raise NotOfferedError("no parameter is trainable")
    with torch.enable_grad(), probe.training():
        loss = _training_loss(probe)
        if not loss.requires_grad:
            return Verdict(False, "the loss does not depend on any parameter")
        grads = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    problems = []
    steps = None if probe.own is None else probe.own.config.max_steps
    for name, gradient in zip(named, grads, strict=True):
        if gradient is None:
            problems.append(f"{name} (none)")
        elif not bool(gradient.isfinite().all()):
            problems.append(f"{name} (not finite)")
        elif not bool(gradient.any()):
            problems.append(f"{name} (zero)")
        elif steps is not None and _is_step_table(name, gradient, steps):
            problems += [f"{name}[{t}] (zero)" for t in range(steps) if not bool(gradient[t].any())]
    if problems:
        more = f" and {len(problems) - SHOWN_NAMES} more" if len(problems) > SHOWN_NAMES else ""
        return Verdict(
            False, f"no usable gradient: {', '.join(problems[:SHOWN_NAMES])}{more}; of {len(named)} trainable parameters"
        )
    return Verdict(True, f"{len(named)} trainable parameters, loss {float(loss.detach()):.4f}")


def _training_loss(probe: Probe) -> Tensor:
    """Returns a loss that every step and what halts have a part in."""
    ids = probe.ids(2)
    options: dict[str, object] = {"labels": ids} if probe.offers("labels") else {}
    if probe.own is None or probe.depth is None:
        return _loss_of(probe.call(ids, options=options), ids)
    # per-step tables end where they end; an exit gate needs a second step to choose from
    options["depth"] = probe.own.config.max_steps or max(probe.depth, 2)
    loss = _loss_of(probe.call(ids, options={**options, "select": "last"}), ids)
    if probe.own.halting.mixes is None:
        return loss
    # what halting mixes is told nothing of the steps after the last token has halted: these the last step's answer reads
    return loss + _loss_of(probe.call(ids, options={**options, "select": "expected"}), ids)


def _loss_of(answer: ProbeResult, ids: Tensor) -> Tensor:
    if answer.loss is not None:
        return answer.loss
    return F.cross_entropy(answer.logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def _is_step_table(name: str, gradient: Tensor, steps: int) -> bool:
    holder = name.split(".")[0]
    return (
        holder in ("end_norm", "layer_post_norm", "injection", "adapters", "gate", "halting")
        and gradient.dim() > 1
        and len(gradient) == steps
    )


def save_and_load(probe: Probe) -> Verdict:
    """Saved and loaded = the same tensors and logits, bit for bit; saved again = the same files."""
    model = probe.model
    if not isinstance(model, PreTrainedModel):
        raise NotOfferedError("the model has no transformers save_pretrained")
    loader: Any = type(model) if probe.own is None else AutoModelForCausalLM
    tally, ids = probe.tally(), probe.ids(2)
    with TemporaryDirectory() as folder:
        first, second = Path(folder, "first"), Path(folder, "second")
        model.save_pretrained(first)
        loaded, info = loader.from_pretrained(first, dtype="auto", local_files_only=True, output_loading_info=True)
        loaded = loaded.to(probe.device).eval()
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            names = sorted(map(str, info[what]))
            tally.hold(f"{what.replace('_', ' ')} after loading: {', '.join(names[:SHOWN_NAMES])}", not names)
        saved = model.state_dict()
        unsaved = {name: buffer for name, buffer in model.named_buffers() if name not in saved}
        _compare_tensors(tally, "tensors", saved, loaded.state_dict())
        _compare_tensors(tally, "buffers outside the file", unsaved, dict(loaded.named_buffers()))
        tally.same("logits before and after", Probe(loaded, probe.vocab_size).logits(ids), probe.logits(ids))
        loaded.save_pretrained(second)
        _compare_files(tally, first, second)
        size = sum(file.stat().st_size for file in first.glob("*.safetensors"))
    tally.notes.append(f"{size:,} bytes of safetensors")
    return tally.verdict()


def _compare_tensors(tally: Tally, what: str, before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    lost = [name for name, value in before.items() if name not in after or not same_bits(after[name], value)]
    tally.hold(f"{what} that came back different: {', '.join(lost[:SHOWN_NAMES])}", not lost)


def _compare_files(tally: Tally, first: Path, second: Path) -> None:
    names = sorted(file.name for file in first.glob("*.safetensors"))
    tally.hold("no safetensors file was written", bool(names))
    again = sorted(file.name for file in second.glob("*.safetensors"))
    tally.hold(f"saved again: files {again}, before {names}", names == again)
    for name in names:
        if name in again:
            tally.hold(f"saved again: {name} has other bytes", filecmp.cmp(first / name, second / name, shallow=False))
