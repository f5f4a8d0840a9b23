"""The ecosystem takes the model: lm-eval scores and generates with it, TRL's SFTTrainer trains it, peft wraps it.

Needs the `eval` and `rl` extras: `pip install -e '.[dev,eval,rl]'`, then `pytest -m ecosystem -n 0`.
"""

from __future__ import annotations

import json
import os

import pytest
import torch
import yaml
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

import loopwright as lw

pytestmark = pytest.mark.ecosystem
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

WORDS = ["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(90))]
PRESETS = ["ouro-1.4b-tiny", "huginn-tiny", "ouroboros-qwen2.5-3b-tiny"]


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    raw = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    raw.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def built(name: str, **changes: object) -> lw.LoopedForCausalLM:
    torch.manual_seed(0)
    return lw.build(name, pad_token_id=0, eos_token_id=1, **changes)


@pytest.mark.parametrize("name", PRESETS)
def test_lm_eval_scores_and_generates(name, tokenizer, tmp_path):
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    rows = [{"question": f"w{i} w{i + 1} w{i + 2}", "a": "w5 w6", "b": "w7", "gold": i % 2} for i in range(4)]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = {"data_files": {"test": str(tmp_path / "test.jsonl")}}
    shared = {"dataset_path": "json", "dataset_kwargs": files, "test_split": "test"}
    tasks = {
        "choice": {"output_type": "multiple_choice", "doc_to_choice": ["w5 w6", "w7"], "doc_to_target": "gold"},
        "free": {"output_type": "generate_until", "doc_to_target": "{{a}}", "generation_kwargs": {"max_gen_toks": 5}},
    }
    for task, fields in tasks.items():
        text = yaml.safe_dump({"task": task, "doc_to_text": "{{question}}", **fields, **shared})
        (tmp_path / f"{task}.yaml").write_text(text)
    model = built(name)
    harness = HFLM(pretrained=model, tokenizer=tokenizer, max_length=64, batch_size=2, device="cpu")
    result = lm_eval.simple_evaluate(
        harness,
        tasks=["choice", "free"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        log_samples=True,
    )
    assert len(result["samples"]["choice"]) == len(result["samples"]["free"]) == 4
    # the harness's log-likelihood of the first choice is ours
    sample = result["samples"]["choice"][0]
    text, first = tokenizer(rows[0]["question"])["input_ids"], tokenizer(rows[0]["a"])["input_ids"]
    with torch.no_grad():
        logits = model(torch.tensor([text + first])).logits.log_softmax(-1)[0]
    ours = sum(logits[len(text) - 1 + i, token].item() for i, token in enumerate(first))
    assert abs(ours - sample["filtered_resps"][0][0]) < 1e-4


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", PRESETS)
def test_trl_trains_it(name, checkpointing, tokenizer, tmp_path):
    datasets = pytest.importorskip("datasets")
    trl = pytest.importorskip("trl")

    model = built(name)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    data = datasets.Dataset.from_list([{"text": " ".join(f"w{(i + j) % 90}" for j in range(12))} for i in range(8)])
    arguments = trl.SFTConfig(
        output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=2, learning_rate=1e-2, report_to=[], use_cpu=True,
        save_strategy="no", bf16=False, gradient_checkpointing=checkpointing, logging_steps=1, disable_tqdm=True,
    )  # fmt: skip
    trainer = trl.SFTTrainer(model=model, args=arguments, train_dataset=data, processing_class=tokenizer)
    trainer.train()
    assert model.is_gradient_checkpointing == checkpointing
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert len(losses) == 2
    assert all(0 < loss < 10 for loss in losses)
    moved = {n for n, p in model.named_parameters() if not torch.equal(p.detach().cpu(), before[n])}
    assert "core.0.self_attn.q_proj.weight" in moved
    assert not any(".bases." in n for n in moved)


@pytest.mark.parametrize("how", [{"packing": True, "padding_free": True}, {"padding_free": True}])
@pytest.mark.parametrize("name", PRESETS)
def test_trl_trains_packed_rows_as_rows_apart(name, how, tokenizer, tmp_path):
    """Eight texts laid end to end in a row, by the packing or by the collator, give the losses of eight padded rows."""
    datasets = pytest.importorskip("datasets")
    trl = pytest.importorskip("trl")

    losses = []
    for packed in ({}, how):
        rows, most = (1, 256) if packed.get("packing") else (8, None)
        # a start that is drawn anew for each row would be another one in the row that holds them all
        model = built(name, state={"kind": "zero"}) if name.startswith("huginn") else built(name)
        data = datasets.Dataset.from_list([{"text": " ".join(f"w{(i * j) % 90}" for j in range(3 + i))} for i in range(8)])
        arguments = trl.SFTConfig(
            output_dir=str(tmp_path / str(len(packed))), max_steps=2, per_device_train_batch_size=rows, learning_rate=1e-2,
            report_to=[], use_cpu=True, save_strategy="no", bf16=False, logging_steps=1, disable_tqdm=True, max_length=most,
            **packed,
        )  # fmt: skip
        trainer = trl.SFTTrainer(model=model, args=arguments, train_dataset=data, processing_class=tokenizer)
        assert len(trainer.train_dataset) == rows
        trainer.train()
        losses.append([row["loss"] for row in trainer.state.log_history if "loss" in row])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_peft_finds_the_projections(tokenizer):
    peft = pytest.importorskip("peft")
    model = built("ouro-1.4b-tiny")
    ids = torch.randint(0, 90, (2, 6))
    plain = model(ids).logits
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM"))
    assert torch.equal(wrapped(input_ids=ids).logits, plain)
    wrapped(input_ids=ids, labels=ids).loss.backward()
    graded = [n for n, p in wrapped.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0]
    assert len(graded) == 2 * 2  # the B factor of two maps in two core layers, summed over the steps
    out = wrapped.generate(input_ids=ids, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert out.shape == (2, 9)
