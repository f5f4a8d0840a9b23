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
