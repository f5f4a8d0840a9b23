"""The stages themselves, with rows at different depths; gradient checkpointing changes no gradient."""

import pytest
import torch
from torch import Tensor
from torch.utils import checkpoint as torch_checkpoint

import loopwright as lw
from loopwright.model.layers import Block
from tests.cases import SOME_TINY_CASES, TINY_CASES, gap, noisy


def ids_of(model, rows: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, model.config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", TINY_CASES)
@torch.no_grad()
def test_rows_at_their_own_steps_equal_each_row_alone(name):
    """One pass through the core with one step index per row, with and without a cache."""
    model = noisy(name)
    depth = model.config.depth
    ids = ids_of(model, 3, 6)
    e, p = model.embed(ids)
    steps = torch.tensor([depth - 1, 0, 1 % depth])
    s = torch.randn(e.shape, generator=torch.Generator().manual_seed(3))
    mixed = model.step(s, e, steps, p)
    for row, t in enumerate(steps.tolist()):
        _, alone = model.embed(ids[row : row + 1])
        assert gap(mixed[row : row + 1], model.step(s[row : row + 1], e[row : row + 1], t, alone)) < 1e-5


@pytest.mark.parametrize("name", TINY_CASES)
@torch.no_grad()
def test_rows_at_their_own_depths_decode_with_one_cache(name):
    """Continuous depth: row 0 is at its second step while row 1 is at its first; both end as if they had run alone."""
    model = noisy(name, read_out="last")
    ids = ids_of(model, 2, 6)
    cache = lw.LoopCache(model.config)
    model(ids[:, :5], depth=2, past_key_values=cache)
    e, p = model.embed(ids[:, 5:], depth=2, cache=cache)
    s = model.start_state(e, p)
    first = model.step(s[:1].expand(2, -1, -1), e[:1].expand(2, -1, -1), 0, model.embed(ids[:1, 5:].expand(2, -1), depth=2)[1])
    del first  # a pass without the cache must not disturb it
    one = model.step(s, e, torch.tensor([0, 0]), p)
    two = model.step(torch.stack([one[0], s[1]]), e, torch.tensor([1, 0]), p)
    # row 0 waits: it repeats its last step from the same state, so that its keys stay as they are
    done = model.step(torch.stack([one[0], two[1]]), e, torch.tensor([1, 1]), p)
    logits = model.read_out(done, p, reading=2)
    assert gap(logits[:, 0], model(ids, depth=2).logits[:, -1]) < 1e-5
    cache.advance(p.span)
    more = ids_of(model, 2, 3, seed=5)
    want = model(torch.cat([ids, more], 1), depth=2).logits[:, 6:]
    assert gap(model(more, depth=2, past_key_values=cache).logits, want) < 1e-5


# gradient checkpointing


def gradients(model: lw.LoopedForCausalLM, ids: Tensor, **inputs) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the loss and every gradient of one training pass, with the same draws of dropout each time."""
    model.zero_grad()
    torch.manual_seed(3)
    loss = model(ids, labels=ids, **inputs).loss
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", SOME_TINY_CASES)
def test_checkpointing_changes_no_gradient(name, monkeypatch):
    """Bitwise; and the layers do run again in the backward pass, which `train` turns on and `eval` off."""
    model = noisy(name, dropout=0.1).train()
    ids = ids_of(model, 2, 5)
    expected = gradients(model, ids)
    runs = []
    forward = Block.forward
    monkeypatch.setattr(Block, "forward", lambda self, *args: (runs.append(self), forward(self, *args))[1])
    gradients(model, ids)
    once = len(runs)
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    runs.clear()
    loss, found = gradients(model, ids)
    assert len(runs) == 2 * once
    assert torch.equal(loss, expected[0]) and found.keys() == expected[1].keys()
    for key, value in expected[1].items():
        assert gap(found[key], value) <= 1e-6 * value.abs().max(), key
    runs.clear()
    gradients(model.eval(), ids)
    assert len(runs) == once
    model.train().gradient_checkpointing_disable()
    runs.clear()
    gradients(model, ids)
    assert len(runs) == once


@pytest.mark.parametrize("name", ["huginn-tiny", "relaxed-tiny", "asura-tiny", "universal-tiny"])
def test_the_reentrant_form_gives_the_same_gradients(name):
    model = noisy(name).train()
    ids = ids_of(model, 2, 5)
    expected = gradients(model, ids)[1]
    model.gradient_checkpointing_enable({"use_reentrant": True})
    found = gradients(model, ids)[1]
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert gap(found[key], value) <= 1e-6 * value.abs().max(), key


@pytest.mark.parametrize("asked", [{"use_reentrant": True}, {}])  # peft leaves it out, which torch takes for True
@pytest.mark.parametrize("layers", [1, 2])
def test_the_reentrant_form_is_refused_where_layers_share_an_adapter_of_the_state(layers, asked):
    """They read what the controller makes of a state, each in a backward pass of its own: torch would refuse the second one."""
    model, ids = noisy("ouroboros-qwen2.5-3b-tiny", core_layers=layers).train(), ids_of(noisy("ouroboros-qwen2.5-3b-tiny"), 2, 5)
    model.gradient_checkpointing_enable(asked)
    with pytest.raises(ValueError, match=r"gradient checkpointing: use_reentrant is not False.*a second backward pass; take False"):
        gradients(model, ids)
    with torch.no_grad():
        model(ids)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    gradients(model, ids)


def test_checkpointing_keeps_what_goes_into_each_layer_run(monkeypatch):
    calls = []
    plain = torch_checkpoint.checkpoint
    monkeypatch.setattr("transformers.modeling_utils.checkpoint", lambda *a, **k: (calls.append(a[0].__self__), plain(*a, **k))[1])
    model = noisy("huginn-tiny").train()
    model.gradient_checkpointing_enable()
    ids = ids_of(model, 2, 5)
    expected = gradients(model, ids, depth=3)[1]
    assert calls == [*model.prelude, *model.core, *model.core, *model.core, *model.coda]
    # a block's own flag is heeded, as in every model of transformers: that of single layers, or of each second one
    calls.clear()
    for block in (*model.prelude, model.core[1]):
        block.gradient_checkpointing = False
    assert model.is_gradient_checkpointing
    found = gradients(model, ids, depth=3)[1]
    assert calls == [*[model.core[0]] * 3, *model.coda]
    assert all(gap(found[key], value) <= 1e-6 * value.abs().max() for key, value in expected.items())


def test_checkpointing_with_states_and_maps():
    model = noisy("huginn-tiny").train()
    ids = ids_of(model, 2, 5)
    both = {"output_hidden_states": True, "output_attentions": True}
    torch.manual_seed(3)
    expected = model(ids, **both)
    model.gradient_checkpointing_enable()
    torch.manual_seed(3)
    found = model(ids, **both)
    for a, b in zip((*found.hidden_states, *found.attentions), (*expected.hidden_states, *expected.attentions), strict=True):
        assert torch.equal(a, b)
    pairs = [torch.autograd.grad(out.logits.sum(), out.hidden_states[1:3]) for out in (found, expected)]
    assert all(gap(a, b) < 1e-6 for a, b in zip(*pairs, strict=True))
