"""Weights that are no plain tensors: the engine and `generate` agree on them, nothing reads them by their address, no folder of
float weights is written of them; what transformers' loaders quantise is saved and opened again.

Those marked need torchao or bitsandbytes: `pip install torchao bitsandbytes`, then `pytest -m ecosystem`.
"""

from __future__ import annotations

import json
import warnings
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from transformers import AutoConfig, AutoModelForCausalLM

import loopwright as lw
from loopwright.generation.prefix import Weights
from loopwright.kernels.gate import is_plain
from loopwright.model.decode_graph import Addresses
from loopwright.model.fused_support import unsupported_reason
from loopwright.model.parts.adapters import diagonal
from loopwright.model.quantised import METHODS, MOST_SETTINGS, plain_tensors, wrong_quantisation
from tests.cases import gap, noisy

NAMES = ["ouro-1.4b-tiny", "huginn-tiny", "ouroboros-qwen2.5-3b-tiny"]
PROMPT = [3, 1, 4, 1, 5]


class Wrapped(Tensor):
    """A tensor whose numbers lie in another one, as those of quantising libraries do."""

    @staticmethod
    def __new__(cls, held: Tensor) -> Wrapped:
        return Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=held.device)

    def __init__(self, held: Tensor) -> None:
        self.held = held

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["held"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kind = func.overloadpacket.__name__  # products, and views of it for them: no more, as in those libraries
        if kind in ("linear", "mm", "bmm", "addmm", "t", "transpose", "expand", "view", "_unsafe_view", "unsqueeze", "detach"):
            found = func(*tree_map_only(Wrapped, lambda x: x.held, args), **(kwargs or {}))
            return found if kind in ("linear", "mm", "bmm", "addmm") else Wrapped(found)
        raise NotImplementedError(f"{cls.__name__}: {func}")


def wrapped(module: nn.Module, name: str = "weight") -> None:
    held = next(plain_tensors(getattr(module, name).detach())).clone()
    setattr(module, name, nn.Parameter(Wrapped(held), requires_grad=False))


def quantised(name: str) -> lw.LoopedForCausalLM:
    """A model each of whose layers' linear maps, and the head, has its weight in another tensor."""
    model = noisy(name, tie_word_embeddings=False)
    for module in [*model.prelude.modules(), *model.core.modules(), *model.coda.modules(), model.lm_head]:
        if isinstance(module, nn.Linear):
            wrapped(module)
    return model


def answers(model: lw.LoopedForCausalLM) -> tuple[list[int], list[int]]:
    """What `generate` and the engine answer, with drafts too."""
    alone = model.generate(torch.tensor([PROMPT]), max_new_tokens=6, do_sample=False)[0, len(PROMPT) :].tolist()
    with lw.Engine(model, max_rows=2, max_tokens=64, readings=2) as engine:
        found = engine.submit(PROMPT, max_new_tokens=6).result(60).tokens
        if model.config.read_out == "last":
            assert engine.submit(PROMPT, max_new_tokens=6, draft_depth="auto").result(60).tokens == found
    return found, alone


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_the_engine_serves_what_generate_does(name):
    model = quantised(name)
    with torch.no_grad():
        expected = noisy(name, tie_word_embeddings=False)(torch.tensor([PROMPT])).logits
        assert gap(model(torch.tensor([PROMPT])).logits, expected) < 1e-5
    found, alone = answers(model)
    assert found == alone


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_no_kernel_answers_for_what_is_quantised_on_a_gpu(name, dtype):
    model = noisy(name, tie_word_embeddings=False).to("cuda", dtype)
    plain = deepcopy(model)
    for module in [*model.prelude.modules(), *model.core.modules(), *model.coda.modules(), model.lm_head]:
        if isinstance(module, nn.Linear):
            wrapped(module)
    ids = torch.tensor([PROMPT], device="cuda")
    expected, found = plain(ids).logits.float(), model(ids).logits.float()
    assert gap(found, expected) < (1e-4 if dtype is torch.float32 else 0.05) * expected.abs().max().item()
    with lw.Engine(model, max_rows=2, max_tokens=64) as engine:
        tokens = engine.submit(PROMPT, max_new_tokens=6).result(60).tokens
    if dtype is torch.float32:
        assert tokens == model.generate(ids, max_new_tokens=6, do_sample=False)[0, len(PROMPT) :].tolist()


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_torchao_on_a_gpu(name):
    torchao = pytest.importorskip("torchao.quantization")
    model = noisy(name, tie_word_embeddings=False).to("cuda", torch.bfloat16)
    torchao.quantize_(model, torchao.Int8WeightOnlyConfig())
    ids = torch.tensor([PROMPT], device="cuda")
    assert unsupported_reason(model, "core").startswith("a weight that is a Int8")
    expected = model.generate(ids, max_new_tokens=6, do_sample=False, use_cache=False)[0, len(PROMPT) :].tolist()
    with lw.Engine(model, max_rows=1, max_tokens=64) as engine:
        found = engine.submit(PROMPT, max_new_tokens=6).result(60).tokens
    assert len(found) == len(expected) == 6
    assert found[0] == expected[0]


def test_no_kernel_reads_what_is_not_there():
    for put in (lambda mlp: wrapped(mlp.up_proj), lambda mlp: mlp.register_buffer("scale", Wrapped(torch.ones(2)))):
        model = noisy("ouro-1.4b-tiny")
        assert unsupported_reason(model, "core") is None
        put(model.core[1].mlp)
        assert unsupported_reason(model, "core") == "a weight that is a Wrapped"
    biased = noisy("huginn-tiny")
    wrapped(biased.prelude[0].self_attn.q_proj, "bias")
    assert [unsupported_reason(biased, stack) for stack in ("prelude", "coda")] == ["a weight that is a Wrapped", None]


def test_no_kernel_reads_what_is_not_there_in_modulated_maps(monkeypatch):
    linear = nn.Linear(32, 32).to(torch.bfloat16)
    assert diagonal._as_it_was_made(linear, torch.bfloat16)
    for name in ("weight", "bias"):
        other = nn.Linear(32, 32).to(torch.bfloat16)
        wrapped(other, name)
        assert not diagonal._as_it_was_made(other, torch.bfloat16)
    monkeypatch.setattr(diagonal, "kernel_dtype", lambda x, linears, rank: x.dtype)
    monkeypatch.setattr(diagonal.Bases, "_by_kernels", lambda *given: pytest.fail("by kernels"))
    model, ids = noisy("ouroboros-qwen2.5-3b-tiny"), torch.tensor([PROMPT])
    with pytest.raises(pytest.fail.Exception):
        model(ids)
    monkeypatch.setattr(diagonal, "is_plain", lambda x: x.shape[-1] == 32)  # every b is something else
    model(ids)


def test_a_weight_that_is_exchanged_is_seen():
    """Both have no address of their own."""
    linear = nn.Linear(4, 4)
    wrapped(linear)
    assert linear.weight.data_ptr() == 0 and [x.data_ptr() for x in plain_tensors(linear.weight)] == [linear.weight.held.data_ptr()]
    addresses, weights = Addresses(linear), Weights(linear)
    lie, version = weights.read()
    assert addresses.hold and weights.read() == (lie, version)
    linear.weight.held.add_(1)
    assert addresses.hold and weights.read()[0] == lie and weights.read()[1] != version
    kept = linear.weight  # so that the next one cannot lie where this one does
    wrapped(linear)
    assert not is_plain(kept) and not addresses.hold and weights.read()[0] != lie


@pytest.mark.parametrize("way", ["wrapped", "packed", "whole numbers"])
@pytest.mark.parametrize("save", ["save", "save_pretrained", "export", "save_adapters"])
@pytest.mark.filterwarnings("ignore")
def test_no_folder_of_float_weights_holds_what_is_quantised(way, save, tmp_path):
    model = noisy("relaxed-tiny")
    if way == "wrapped":
        wrapped(model.core[0].mlp.up_proj)
    elif way == "packed":
        model = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    else:
        weight = model.core[0].mlp.up_proj.weight
        model.core[0].mlp.up_proj.weight = nn.Parameter(weight.detach().to(torch.int8), requires_grad=False)
    folder = tmp_path / "model"
    write = {"save": lw.save, "export": lw.export, "save_adapters": lw.save_adapters}
    with pytest.raises(ValueError, match="the weights are quantised") as caught:
        model.save_pretrained(folder) if save == "save_pretrained" else write[save](model, folder)
    assert "\n" not in str(caught.value) and not folder.exists()


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        (None, None),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_data": {}}}}, None),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, None),
        ("int8", "allowed: a mapping with a quant_method"),
        ({}, "quant_method is None; allowed: bitsandbytes, torchao"),
        ({"quant_method": "gptq", "bits": 4}, "quant_method is 'gptq'; allowed: bitsandbytes, torchao"),
        ({"quant_method": ["torchao"]}, "allowed: bitsandbytes, torchao"),
        ({"quant_method": "torchao", "quant_type": torch.int8}, "quant_type is torch.int8"),
        ({"quant_method": "torchao", "skip": ["x" * 1000] * 2000}, "characters; allowed: at most 1,048,576"),
    ],
)
def test_what_a_config_may_say_of_quantisation(settings, wrong):
    assert METHODS == ("bitsandbytes", "torchao") and MOST_SETTINGS == 2**20
    if wrong is None:
        config = lw.preset("ouro-1.4b-tiny", quantization_config=settings)
        assert list(wrong_quantisation(settings)) == []
        assert lw.LoopedConfig(**config.to_dict()).to_dict().get("quantization_config") == settings
        return
    with pytest.raises(ValueError, match=r"^model config: quantization_config") as caught:
        lw.preset("ouro-1.4b-tiny", quantization_config=settings)
    assert wrong in str(caught.value) and "\n" not in str(caught.value)


def test_load_names_the_method_of_a_quantised_folder(tmp_path):
    lw.save(noisy("ouro-1.4b-tiny"), tmp_path)
    path = tmp_path / "config.json"
    settings = {**json.loads(path.read_text()), "quantization_config": {"quant_method": "torchao"}}
    path.write_text(json.dumps(settings))
    (tmp_path / "manifest.json").unlink(missing_ok=True)
    with pytest.raises(ValueError, match=r"the weights are quantised \(torchao\); allowed: plain float weights"):
        lw.load(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).quantization_config == {"quant_method": "torchao"}


# with the libraries themselves


@pytest.mark.ecosystem
@pytest.mark.parametrize("name", [*NAMES, "asura-tiny", "universal-tiny"])
def test_torchao_in_place(name, tmp_path):
    """The head too."""
    torchao = pytest.importorskip("torchao.quantization")
    model = noisy(name, tie_word_embeddings=False)
    torchao.quantize_(model, torchao.Int8WeightOnlyConfig())
    weight = model.core[0].mlp.up_proj.weight
    assert weight.data_ptr() == 0 and not is_plain(weight)
    if name in NAMES:
        assert unsupported_reason(model, "core").startswith("a weight that is a Int8")
    found, alone = answers(model)
    assert found == alone
    with pytest.raises(ValueError, match="save: the weights are quantised"):
        lw.save(model, tmp_path / "model")


@pytest.mark.ecosystem
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["torchao", "bitsandbytes-8", "bitsandbytes-4"])
def test_a_quantised_model_is_saved_and_opened_again(kind, name, tmp_path):
    pytest.importorskip(kind.partition("-")[0])
    from transformers import BitsAndBytesConfig, TorchAoConfig

    lw.save(noisy(name, hidden_size=64, intermediate_size=64), tmp_path / "plain")
    if kind == "torchao":
        from torchao.quantization import Int8WeightOnlyConfig

        asked = TorchAoConfig(Int8WeightOnlyConfig())
    else:
        asked = BitsAndBytesConfig(**{f"load_in_{kind[-1]}bit": True})
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", quantization_config=asked)
    ids = torch.tensor([PROMPT])
    with torch.no_grad(), warnings.catch_warnings():
        expected = model(ids, use_cache=False).logits
        model.save_pretrained(tmp_path / "theirs")
        lw.save(model, tmp_path / "ours")
        for folder in ("theirs", "ours"):
            again = AutoModelForCausalLM.from_pretrained(tmp_path / folder)
            assert type(again.core[0].mlp.up_proj.weight) is type(model.core[0].mlp.up_proj.weight)
            assert gap(again(ids, use_cache=False).logits, expected) < 1e-5
            with pytest.raises(ValueError, match=rf"quantised \({kind.partition('-')[0]}\); allowed: plain float weights"):
                lw.load(tmp_path / folder)
    found, alone = answers(again)
    assert found == alone
