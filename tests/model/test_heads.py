"""Heads of transformers over looped models: opened from a folder of a language model, at any depth, saved, trained by Trainer."""

import pytest
import torch
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    Trainer,
    TrainingArguments,
)

import loopwright as lw
from tests.cases import SOME_TINY_CASES, gap, noisy

HEADS = {
    AutoModelForSequenceClassification: lw.LoopedForSequenceClassification,
    AutoModelForTokenClassification: lw.LoopedForTokenClassification,
    AutoModelForQuestionAnswering: lw.LoopedForQuestionAnswering,
}
IDS = torch.tensor([[5, 9, 2, 7], [3, 4, 0, 0]])


def opened(auto, folder):
    return auto.from_pretrained(folder, **({} if auto is AutoModelForQuestionAnswering else {"num_labels": 3})).eval()


@pytest.mark.parametrize("name", SOME_TINY_CASES)
@torch.no_grad()
def test_a_head_reads_the_model_of_a_folder_at_any_depth(name, tmp_path):
    model = noisy(name, pad_token_id=0)
    model.save_pretrained(tmp_path / "words")
    for auto, kind in HEADS.items():
        headed = opened(auto, tmp_path / "words")
        assert type(headed) is kind
        mask = (IDS != 0).long()
        for depth in (1, 2):
            features = model.model(IDS, attention_mask=mask, depth=depth).last_hidden_state
            found = headed(input_ids=IDS, attention_mask=mask, depth=depth)
            if kind is lw.LoopedForQuestionAnswering:
                assert gap(torch.stack([found.start_logits, found.end_logits], -1), headed.qa_outputs(features)) < 1e-5
            elif kind is lw.LoopedForTokenClassification:
                assert gap(found.logits, headed.score(features)) < 1e-5
            else:
                assert gap(found.logits, headed.score(features)[range(2), [3, 1]]) < 1e-5  # the last token that is no padding
        headed.save_pretrained(tmp_path / kind.__name__)
        again = opened(auto, tmp_path / kind.__name__)
        assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), headed.state_dict().values(), strict=True))


@pytest.mark.long
def test_trainer_trains_a_classifier(tmp_path):
    torch.manual_seed(0)
    model = lw.LoopedForSequenceClassification(lw.preset("ouro-1.4b-tiny", pad_token_id=0, num_labels=2))
    rows = [{"input_ids": torch.tensor([3 + label, 5 + i % 4, 9]), "labels": label} for i in range(16) for label in (0, 1)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=30, per_device_train_batch_size=16, learning_rate=1e-2, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    Trainer(model=model, args=arguments, train_dataset=rows).train()
    with torch.no_grad():
        answers = model.eval()(input_ids=torch.stack([row["input_ids"] for row in rows])).logits.argmax(-1)
    assert answers.tolist() == [row["labels"] for row in rows]


@pytest.mark.parametrize("name", ["ouro-1.4b-tiny", "huginn-tiny", "ouroboros-qwen2.5-3b-tiny", "universal-tiny"])
@torch.no_grad()
def test_padded_rows_are_read_as_alone(name):
    """On either side, and at any depth."""
    long, short = torch.tensor([[5, 9, 2, 7, 8]]), torch.tensor([[3, 4, 6]])
    gone = torch.zeros(1, 2, dtype=torch.long)
    for kind in HEADS.values():
        torch.manual_seed(0)
        headed = kind(lw.preset(name, pad_token_id=0, num_labels=3)).double().eval()
        for depth in (1, 3):
            alone = headed(short, depth=depth)
            for padded, place in ((torch.cat([gone, short], 1), slice(2, 5)), (torch.cat([short, gone], 1), slice(0, 3))):
                rows = torch.cat([long, padded])
                found = headed(rows, attention_mask=(rows != 0).long(), depth=depth)
                for name_, value in alone.items():
                    if name_.endswith("logits"):
                        row = found[name_][1:]
                        assert gap(row if kind is lw.LoopedForSequenceClassification else row[:, place], value) < 1e-9


TARGETS = {
    lw.LoopedForSequenceClassification: lambda n: {"labels": n % 2},
    lw.LoopedForTokenClassification: lambda n: {"labels": [n % 2] * (2 + n % 3)},
    lw.LoopedForQuestionAnswering: lambda n: {"start_positions": 1, "end_positions": 1 + n % 2},
}


def collated(rows: list[dict]) -> dict[str, torch.Tensor]:
    """Rows of unequal length, padded on the right with a mask."""
    most = max(len(row["input_ids"]) for row in rows)
    fill = {"input_ids": 0, "attention_mask": 0, "labels": -100}

    def padded(key, value):
        return [*value, *[fill[key]] * (most - len(value))] if isinstance(value, list) else value

    rows = [{**row, "attention_mask": [1] * len(row["input_ids"])} for row in rows]
    return {key: torch.tensor([padded(key, row[key]) for row in rows]) for key in rows[0]}


@pytest.mark.long
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", TARGETS)
def test_trainer_trains_saves_and_evaluates_each_head(kind, checkpointing, tmp_path):
    """At the depth of the config. Saved, it is opened again as it was."""
    torch.manual_seed(0)
    model = kind(lw.preset("ouro-1.4b-tiny", pad_token_id=0, num_labels=2, depth=2))
    rows = [{"input_ids": [3 + n % 2, *[5 + n % 4] * (1 + n % 3)], **TARGETS[kind](n)} for n in range(24)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "run"), max_steps=12, per_device_train_batch_size=8, gradient_accumulation_steps=2,
        learning_rate=1e-2, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True, logging_steps=1,
        gradient_checkpointing=checkpointing, label_names=list(TARGETS[kind](0)),
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows, data_collator=collated)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < 0.8 * before
    assert model.is_gradient_checkpointing == checkpointing
    trainer.save_model(str(tmp_path / "saved"))
    again = kind.from_pretrained(tmp_path / "saved").eval()
    assert again.config.depth == 2
    batch = collated(rows[:6])
    with torch.no_grad():
        assert gap(again(**batch).loss, model.eval()(**batch).loss) < 1e-6
