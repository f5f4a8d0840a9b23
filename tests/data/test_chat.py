"""Answer-only loss: exactly what the assistant says, with the end of its turn, and nothing else is predicted."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import loopwright as lw
from loopwright.data.batch import BatchSource, Splits
from loopwright.data.chat import Chat, Chats, PackedChats, pack
from loopwright.data.tokenizer import Tokenizer
from loopwright.training.objectives.losses import Final
from loopwright.training.rollout import Plan, rollout
from tests.data.words import SHARED, TEMPLATE, save_words
from tests.generation.tiny import few_words


def save(path: Path, *records: Any) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def pair(question: str | None, answer: str | None) -> dict[str, str | None]:
    return {"question": question, "answer": answer}


def build(
    folder: Path, records: list[Any], *, template: str | None = None, bos: bool = False, trim: bool = False,
    jinja: str | None = None, **options: Any,
) -> Splits:  # fmt: skip
    words = save_words(folder / "words", template=template, bos=bos, trim=trim)
    files = save(folder / "train.jsonl", *records)
    valid = save(folder / "valid.jsonl", records[0])
    return Chat(files=files, valid_files=valid, tokenizer=words, template=jinja, **options).splits(folder / "kept")


def said(source: BatchSource, row: int, words: Tokenizer) -> tuple[str, str]:
    """Returns the text that is only read and the text that is predicted."""
    batch = source.batch([row])
    chosen = batch.labels[0] != -100
    assert torch.equal(batch.labels[0][chosen], batch.input_ids[0][chosen])
    return words.decode(batch.input_ids[0][~chosen]), words.decode(batch.input_ids[0][chosen])


def test_a_template_and_its_end_of_turn(tmp_path: Path) -> None:
    splits = build(tmp_path, [pair(" the question ", "an answer\n"), pair("y", "ya")], template=TEMPLATE, system="be kind")
    words = Tokenizer(str(tmp_path / "words"))
    turns = [("system", "be kind"), ("user", " the question "), ("assistant", "an answer\n")]  # each as it was written
    messages = [{"role": role, "content": content} for role, content in turns]
    prompt = words.own.apply_chat_template(messages[:2], tokenize=False, add_generation_prompt=True)
    assert said(splits.train, 0, words) == (f"{prompt}\n", "an answer\n<|im_end|>")
    assert isinstance(splits.train, Chats) and splits.train.show(0) == words.own.apply_chat_template(messages, tokenize=False)
    assert splits.exact and splits.notes["train"]["samples"] == 2


def test_plain_lines_where_there_is_no_template(tmp_path: Path) -> None:
    splits = build(tmp_path, [pair("the question", "an answer")], bos=True, system="be kind")
    words = Tokenizer(str(tmp_path / "words"))
    assert said(splits.train, 0, words) == ("<s>be kind\nthe question\n", "an answer<eos>")
    batch = splits.train.batch([0])
    assert int(batch.labels[0, -1]) == splits.eos_id and int(batch.input_ids[0, 0]) == words.own.bos_token_id


def test_a_token_over_the_seam_is_not_predicted(tmp_path: Path) -> None:
    """The line end and "y" are one token here: it is not the assistant's alone, and stands in no prompt."""
    splits = build(tmp_path, [pair("q", "yes")])
    assert said(splits.train, 0, Tokenizer(str(tmp_path / "words"))) == ("q\ny", "es<eos>")


@pytest.mark.parametrize("trim", [False, True])  # whether the token " a" is said to begin before or after its blank
def test_a_blank_over_the_seam_is_not_predicted(tmp_path: Path, trim: bool) -> None:
    template = "{% for m in messages %}{{ m['content'] }}> {% endfor %}"
    splits = build(tmp_path, [pair("q", "as"), pair("q", "is")], template=template, trim=trim)
    words = Tokenizer(str(tmp_path / "words"))
    assert said(splits.train, 0, words) == ("q> a", "s<eos>") and said(splits.train, 1, words) == ("q> ", "is<eos>")


def test_conversations_of_several_turns(tmp_path: Path) -> None:
    turns = [("user", "one"), ("assistant", "two"), ("user", "two"), ("assistant", "three"), ("user", "more")]
    record = {"chat": [{"role": role, "content": text} for role, text in turns]}
    own = {"chat": [{"role": "system", "content": "mine"}, *record["chat"][:2]]}
    splits = build(tmp_path, [record, own], template=TEMPLATE, messages="chat", system="be kind")
    words = Tokenizer(str(tmp_path / "words"))
    unsaid, answers = said(splits.train, 0, words)
    assert answers == "two<|im_end|>three<|im_end|>" and unsaid.startswith("<|im_start|>system\nbe kind") and "more" in unsaid
    unsaid, answers = said(splits.train, 1, words)
    assert answers == "two<|im_end|>" and unsaid.startswith("<|im_start|>system\nmine") and "kind" not in unsaid
    (tmp_path / "plain").mkdir()
    plain = build(tmp_path / "plain", [record], messages="chat")
    assert said(plain.train, 0, words) == ("one\ntwo\nmore\n", "two<eos>three<eos>")


OTHERS = {
    "nothing ends a turn": (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}",
        "twofour<eos>",
    ),
    "only the last turn is closed": (
        "{% for m in messages %}[{{ m['content'] }}]{{ eos_token if loop.last and not add_generation_prompt }}{% endfor %}"
        "{% if add_generation_prompt %}[{% endif %}",
        "twofour]<eos>",
    ),
    "a control word before the content, and blanks": (
        "{% for m in messages %}<|im_start|> {{ m['content'] }} <|im_end|>{% endfor %}",
        "<|im_start|> two <|im_end|><|im_start|> four <|im_end|>",
    ),
}


@pytest.mark.parametrize(("template", "answers"), OTHERS.values(), ids=OTHERS)
def test_other_templates(tmp_path: Path, template: str, answers: str) -> None:
    turns = [("user", "one"), ("assistant", "two"), ("user", "three"), ("assistant", "four")]
    record = {"chat": [{"role": role, "content": text} for role, text in turns]}
    splits = build(tmp_path, [record], template=template, messages="chat")
    assert said(splits.train, 0, Tokenizer(str(tmp_path / "words")))[1] == answers


def test_cut_samples_keep_their_labels_in_place(tmp_path: Path) -> None:
    records = [pair("q", "abcdefgh"), pair("a longer question", "x"), pair("q", "z")]
    splits = build(tmp_path, records, length=6)
    words = Tokenizer(str(tmp_path / "words"))
    assert [said(splits.train, row, words) for row in range(2)] == [("q\n", "abcd"), ("q\n", "z<eos>")]
    facts = splits.notes["train"]
    assert (facts["samples"], facts["cut"], facts["answer cut off"]) == (2, 1, 1)


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    records = [pair("q", "a"), pair(None, "a"), pair("q", " "), pair("q", "stop<eos>here"), pair("<|im_end|>", "a")]
    facts = build(tmp_path, records).notes["train"]
    assert (facts["samples"], facts["empty"], facts["control words"]) == (1, 2, 2)
    assert build(tmp_path, records).notes["train"] == facts  # also when the tokens are used again


def test_a_template_of_ones_own_goes_with_the_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text(TEMPLATE)
    splits = build(tmp_path, [pair("q", "a")], jinja=str(tmp_path / "mine.jinja"))
    assert splits.tokenizer.chat_template == TEMPLATE
    assert said(splits.train, 0, Tokenizer(str(tmp_path / "words")))[1] == "a<|im_end|>"


LETTERS = st.text(alphabet="abn ", min_size=1, max_size=5).map(lambda text: text.strip() or "b")
CONVERSATIONS = st.lists(st.tuples(LETTERS, LETTERS), min_size=1, max_size=3)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(CONVERSATIONS, min_size=1, max_size=5), st.booleans())
def test_the_loss_covers_the_answers_and_their_ends_alone(tmp_path: Path, chats: list[list[tuple[str, str]]], packed: bool) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    records = [{"chat": [{"role": r, "content": t} for q, a in chat for r, t in (("user", q), ("assistant", a))]} for chat in chats]
    splits = build(folder, records, template=TEMPLATE, messages="chat", packed=packed, length=150)
    words, answers = Tokenizer(str(folder / "words")), []
    for row in range(len(splits.train)):
        batch = splits.train.batch([row])
        chosen = batch.labels[0] != -100
        assert torch.equal(batch.labels[0][chosen], batch.input_ids[0][chosen])
        parts = [0] if batch.segment_ids is None else batch.segment_ids[0].unique().tolist()
        for part in parts:
            inside = chosen if batch.segment_ids is None else chosen & (batch.segment_ids[0] == part)
            answers.append(words.decode(batch.input_ids[0][inside]))
    assert sorted(answers) == sorted("".join(f"{a}<|im_end|>" for _, a in chat) for chat in chats)


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(LETTERS, LETTERS), min_size=2, max_size=6), st.sampled_from(["stars-addition-tiny", "huginn-tiny"]))
def test_packed_is_unpacked(tmp_path: Path, pairs: list[tuple[str, str]], name: str) -> None:
    """The same samples give the same loss and the same number of targets, in rows of their own or side by side."""
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    records = [pair(q, a) for q, a in pairs]
    apart, packed = (build(folder, records, template=TEMPLATE, packed=packed, length=90) for packed in (False, True))
    assert isinstance(packed.train, PackedChats) and len(packed.train) < len(apart.train) == len(pairs)
    model = lw.build(name, vocab_size=apart.vocab_size).eval()
    losses = []
    for splits in (apart, packed):
        batch = splits.train.batch(range(len(splits.train)))
        with torch.no_grad():
            losses.append(Final()(model, rollout(model, batch, Plan(3, 3), keeps="last"))[0])
        assert batch.targets == sum(splits.train.batch([row]).targets for row in range(len(splits.train)))
    assert losses[0].item() == pytest.approx(losses[1].item(), abs=2e-5)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=40))
def test_packing_takes_each_sample_once_and_fills_rows(lengths: list[int]) -> None:
    rows = pack(lengths, 20)
    assert sorted(sample for row in rows for sample in row) == list(range(len(lengths)))
    filled = [sum(lengths[sample] for sample in row) for row in rows]
    assert max(filled) <= 20
    assert sum(1 for n in filled if n <= 10) <= 1  # two rows that are half empty would have been one


def test_batches_are_padded_on_the_right(tmp_path: Path) -> None:
    splits = build(tmp_path, [pair("q", "abc"), pair("qq", "z"), pair("r", "xyz")])
    batch = splits.train.batch(torch.tensor([0, 1]))
    assert batch.attention_mask is not None and batch.attention_mask.tolist() == [[1] * 6, [1] * 5 + [0]]
    assert int(batch.input_ids[1, -1]) == splits.pad_id and int(batch.labels[1, -1]) == -100 and batch.targets == 6
    assert splits.train.batch([0, 2]).attention_mask is None
    with pytest.raises(IndexError, match="sample 3; allowed: 0 to 2"):
        splits.train.batch([3])


def test_datasets_of_other_fields(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    words = save_words(tmp_path / "words")
    (tmp_path / "numina").mkdir()
    save(tmp_path / "numina" / "train.jsonl", *({"problem": f"p{i}", "solution": f"s{i}"} for i in range(5)))
    chat = Chat(dataset=str(tmp_path / "numina"), question="problem", answer="solution", tokenizer=words, limit=3, valid=1)
    splits = chat.splits(tmp_path / "kept")
    assert [said(splits.train, row, Tokenizer(words)) for row in range(3)] == [(f"p{i}\n", f"s{i}<eos>") for i in (1, 2, 3)]
    assert said(splits.valid, 0, Tokenizer(words)) == ("p0\n", "s0<eos>")


def test_a_text_outside_the_vocabulary_is_one_line(tmp_path: Path) -> None:
    few_words().save_pretrained(tmp_path / "few")
    files = save(tmp_path / "train.jsonl", pair("q", "a"))
    with pytest.raises(ValueError, match=r"few: a text has no tokens in this tokenizer \(.*\); give another text or tokenizer$"):
        Chat(files=files, valid_files=files, tokenizer=str(tmp_path / "few")).splits(tmp_path / "kept")


def test_faults_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train.jsonl:2: no field 'answer'; it has: question"):
        build(tmp_path, [pair("q", "a"), {"question": "q"}])
    with pytest.raises(ValueError, match=r"field 'chat' is None; allowed: a list of messages with a content and a role \(system"):
        build(tmp_path, [pair("q", "a")], messages="chat")
    fine = {"chat": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}
    with pytest.raises(ValueError, match=r"train.jsonl:1: field 'chat' holds a conversation; give data.messages=chat$"):
        build(tmp_path, [fine])
    with pytest.raises(ValueError, match=r"train.jsonl:1: no field 'question'; it has: chat; give data.question=FIELD, or"):
        build(tmp_path, [{"chat": ["x"]}])
    with pytest.raises(ValueError, match=r"train.jsonl:1: no field 'answer'; it has: question, reply; give data.answer=FIELD"):
        build(tmp_path, [{"question": "x", "reply": "y"}])
    with pytest.raises(ValueError, match=r"field 'conversations' holds a conversation; give data.messages=conversations$"):
        build(tmp_path, [{"conversations": [{"from": "human", "value": "x"}]}])
    with pytest.raises(ValueError, match=r"field 'chat' holds a conversation; give data.messages=chat$"):
        build(tmp_path, [{"tools": [{"name": "add"}], **fine}])
    with pytest.raises(ValueError, match=r"train.jsonl:2: message 2 has the role 'asistant'; did you mean 'assistant'"):
        build(tmp_path, [fine, {"chat": [fine["chat"][0], {"role": "asistant", "content": "x"}]}], messages="chat")
    with pytest.raises(ValueError, match=r"train.jsonl:3: no message of the assistant, so there is nothing to learn"):
        build(tmp_path, [fine, fine, {"chat": fine["chat"][:1]}], messages="chat")
    with pytest.raises(ValueError, match=r"words has no chat template; give template: FILE"):
        build(tmp_path, [fine], messages="chat", jinja="tokenizer")
    with pytest.raises(ValueError, match=r"template: nowhere.jinja cannot be read"):
        build(tmp_path, [fine], messages="chat", jinja="nowhere.jinja")
    refusing = "{{ raise_exception('no system here') if messages[0]['role'] == 'system' }}" + TEMPLATE
    with pytest.raises(ValueError, match=r"train.jsonl:1: the chat template refuses the conversation \(no system here\)"):
        build(tmp_path, [pair("q", "a")], template=refusing, system="be kind")
    with pytest.raises(ValueError, match=r"train.jsonl:1: the chat template refuses the conversation \(TemplateError\)"):
        build(tmp_path, [pair("q", "a")], template=refusing.replace("no system here", ""), system="be kind")
    forgetful = "{{ messages | length }}" + TEMPLATE
    with pytest.raises(ValueError, match=r"train.jsonl:1: the chat template writes the prompt of message 2 otherwise in the whole"):
        build(tmp_path, [pair("q", "a")], template=forgetful)
    for options, message in [
        ({}, "files is None and dataset is None; allowed: one of them"),
        ({"files": "a", "dataset": "b"}, "files is 'a' and dataset is 'b'; allowed: one of them"),
        ({"files": "a", "revision": "b"}, "subset, valid_split and revision belong to a dataset"),
        ({"dataset": "a", "length": 1}, r"length must be a whole number >= 2 \(got 1\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            Chat(tokenizer="words", **options)


@pytest.mark.long
@pytest.mark.parametrize(("name", "end"), [("tokenizers/gpt2", "<|endoftext|>"), ("models/smollm2-135m-instruct", "<|im_end|>")])
def test_real_questions_and_answers(tmp_path: Path, name: str, end: str) -> None:
    gsm8k = SHARED / "eval" / "gsm8k_train.jsonl.gz"
    if not gsm8k.is_file() or not (SHARED / name).is_dir():
        pytest.skip("the shared data are not here")
    with gzip.open(gsm8k, "rt") as file:
        records = [json.loads(next(file)) for _ in range(40)]
    words = Tokenizer(SHARED / name)
    splits = Chat(files=str(gsm8k), tokenizer=str(SHARED / name), limit=30, valid=10).splits(tmp_path)
    for row, record in enumerate(records[10:]):
        unsaid, answer = said(splits.train, row, words)
        assert answer == record["answer"].strip() + end and record["question"].strip() in unsaid


def test_where_every_answer_is_cut_off_the_length_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing is left for train; .*: 2 answer cut off; give a length above 3"):
        build(tmp_path, [pair("what is it?", "this"), pair("and now?", "that")], length=3)
