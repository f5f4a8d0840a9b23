"""An analysis from end to end: prompts, memory, a summary."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest
import torch

import loopwright as lw
from loopwright.analysis import study as analysis_study
from loopwright.analysis.study import DATA, Subject, fitting_batch, read_prompts, study, trace_bytes
from loopwright.analysis.trace.edit import ablate_massive
from loopwright.analysis.trace.record import OutOfMemory
from loopwright.analysis.trace.trace import check_lengths
from tests.analysis.summaries import ROWS, dense, looped
from tests.cases import noisy

pytestmark = pytest.mark.usefixtures("few_products")


def test_what_the_model_is():
    about = looped()["model"]
    assert about["layers"] == {"prelude": 1, "core": 4, "coda": 1} and about["looped"] and about["name"] == "loop"
    assert dense()["model"]["depth"] == 1 and not dense()["model"]["looped"]


@pytest.mark.slow
def test_other_weights_in_the_same_folder_are_refused(tmp_path):
    model = noisy("huginn-tiny")
    first = study(Subject("m", model, ROWS), tmp_path, depth=5)
    assert study(Subject("m", model, ROWS), tmp_path, depth=5) == first
    with torch.no_grad():
        model.core[0].mlp.up_proj.weight.add_(0.01)
    with pytest.raises(ValueError, match="weights is"):
        study(Subject("m", model, ROWS), tmp_path, depth=5)


@pytest.mark.long
def test_an_edited_study_says_so_and_differs(tmp_path):
    model = noisy("huginn-tiny")
    plain = study(Subject("m", model, ROWS), tmp_path / "a", depth=5)
    edited = study(
        Subject("m", model, ROWS), tmp_path / "b", depth=5, edit=ablate_massive(model.config), edited="second MLP zeroed"
    )
    assert edited["model"]["edited"] == "second MLP zeroed"
    assert edited["by_place"]["norm"]["mean"] != plain["by_place"]["norm"]["mean"]


def test_prompts_are_checked_before_anything_runs():
    model = noisy("huginn-tiny", max_position_embeddings=4)
    for rows, words in (
        ([], "none; allowed"),
        ([[1], []], "number 2 has no tokens"),
        ([[1] * 5], "number 1 has 5 tokens; the model's context holds 4"),
        ([[96]], "token id 96; the model knows 96 tokens"),
    ):
        with pytest.raises(ValueError, match=words):
            check_lengths(model.config, rows)


@pytest.mark.long
def test_progress_is_told(tmp_path):
    told = []
    study(Subject("m", noisy("huginn-tiny"), ROWS), tmp_path, depth=5, batch=2, progress=lambda *words: told.append(words))
    assert ("traces", 2, 3) in told and ("traces", 3, 3) in told


def test_memory_that_ends_in_a_close_look_is_one_line_and_keeps_the_traces(tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore lines.")

    subject = Subject("m", noisy("huginn-tiny"), [[1, 2, 3], [4, 5]])
    monkeypatch.setattr(analysis_study, "compare_pairs", full)
    with pytest.raises(OutOfMemory, match="all 2 traces are kept; take fewer pairs") as found:
        study(subject, tmp_path, depth=3)
    assert "\n" not in str(found.value)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.safetensors")}
    assert study(subject, tmp_path, depth=3, pairs=0)["examples"] == 2
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.safetensors")} and len(before) == 2


def test_weights_that_are_not_finite_are_refused(tmp_path):
    model = noisy("huginn-tiny")
    with torch.no_grad():
        next(model.core.parameters()).view(-1)[0] = float("inf")
    with pytest.raises(ValueError, match=r"m: core\.\S+ is not finite, so there is nothing to analyze"):
        study(Subject("m", model, [[1, 2, 3]]), tmp_path / "traces", depth=2)
    assert not (tmp_path / "traces").exists()


def write(path, *rows):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def test_text_files_and_sets(tmp_path):
    for text in ("Hello there.", "Read the file a.txt", "a " * 3000):
        assert read_prompts(text) == [text]
    (tmp_path / "a.txt").write_text("one\n\n two \nthree")
    assert read_prompts(str(tmp_path / "a.txt")) == ["one", " two ", "three"]
    rows = write(tmp_path / "b.jsonl", {"text": "t", "id": 1}, {"prompt": "p", "text": "t"}, {"tokens": [1, 2]}, {"text": ""})
    assert read_prompts(rows) == ["t", "p", [1, 2]]
    write(tmp_path / "gsm8k_test.jsonl.gz", {"question": "q", "answer": "a"})
    write(tmp_path / "hellaswag_val.jsonl", {"ctx": "c", "endings": []})
    assert read_prompts("gsm8k", data=str(tmp_path)) == ["q"]
    assert read_prompts("hellaswag", environment={DATA: str(tmp_path)}) == ["c"]


def test_a_draw_is_a_pure_function_of_its_seed_and_keeps_the_order(tmp_path):
    source = write(tmp_path / "x.jsonl", *({"text": str(i)} for i in range(50)))
    drawn = read_prompts(source, examples=10, seed=1)
    assert drawn == read_prompts(source, examples=10, seed=1) != read_prompts(source, examples=10, seed=2)
    assert drawn == sorted(drawn, key=int) and len(set(drawn)) == 10
    assert len(read_prompts(source, examples=99)) == 50


@pytest.mark.parametrize(
    ("source", "data", "words"),
    [
        ("  ", None, "an empty text"),
        ("gsm8k", None, "give --data FOLDER"),
        ("gsm8k", "nowhere", "holds no gsm8k"),
        ("gsm8", None, "did you mean 'gsm8k'"),
        ("missing.jsonl", None, "there is no such file"),
        ("empty.txt", None, "holds no prompt"),
        ("fields.jsonl", None, "no field 'text'"),
        ("tokens.jsonl", None, "no list of token ids"),
    ],
)
def test_mistakes_are_one_line(tmp_path, monkeypatch, source, data, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n \n")
    write(tmp_path / "fields.jsonl", {"body": "x"})
    write(tmp_path / "tokens.jsonl", {"tokens": [1, "a"]})
    with pytest.raises((ValueError, FileNotFoundError), match=words) as caught:
        read_prompts(source, data=data, environment={})
    assert "\n" not in str(caught.value)


def test_a_file_is_a_file_whatever_its_name_holds(tmp_path):
    place = tmp_path / "two words"
    place.mkdir()
    (place / "my prompts.txt").write_text("one\ntwo\n")
    assert read_prompts(str(place / "my prompts.txt")) == ["one", "two"]
    for text in ("read notes.txt aloud", "word " * 2000, "a\0b c", "~nobody at all"):
        assert read_prompts(text) == [text]


def test_no_examples_are_refused():
    with pytest.raises(ValueError, match="examples: 0"):
        read_prompts("x", examples=0)


def test_a_user_that_is_not_there_is_named():
    with pytest.raises(FileNotFoundError, match="names a user who is not here"):
        read_prompts("~nosuchuser/x.txt")


OURO = lw.preset("ouro-1.4b")
BF16 = torch.bfloat16


def total(**changes: int) -> int:
    return sum(trace_bytes(OURO, **{"batch": 8, "length": 128, "depth": 128, "dtype": BF16} | changes).values())


def test_an_estimate_grows_with_batch_length_and_depth():
    assert total() < total(batch=16) and total() < total(length=256) and total() < total(depth=256)


def test_depth_costs_numbers_alone():
    few, many = (trace_bytes(OURO, batch=8, length=128, depth=depth, dtype=BF16) for depth in (1, 128))
    assert {name for name in few if few[name] != many[name]} == {"numbers"}


def test_what_is_held_is_every_layers_tensors_the_state_and_those_of_one_layer_picked_row_by_row():
    one, two = (
        trace_bytes(replace(OURO, core_layers=layers), batch=8, length=128, depth=4, dtype=BF16)["held"] for layers in (1, 2)
    )
    layer = two - one - 8 * OURO.vocab_size * 4  # what the lens says of a layer
    assert layer == 8 * 128 * (OURO.hidden_size + 2 * OURO.num_attention_heads * OURO.head_dim) * 2
    assert one - 8 * OURO.vocab_size * 4 * 4 == 3 * layer


def test_maps_stop_growing():
    a, b = (trace_bytes(OURO, batch=8, length=length, depth=1, dtype=BF16)["maps"] for length in (4096, 8192))
    assert a == b


def test_the_batch_that_fits():
    sizes = {"length": 128, "depth": 128, "dtype": BF16}
    weights = trace_bytes(OURO, batch=1, **sizes)["weights"]
    free = total(batch=5) - weights
    assert fitting_batch(OURO, batch=8, free=free, **sizes) == 5
    assert fitting_batch(OURO, batch=4, free=free, **sizes) == 4
    assert fitting_batch(OURO, batch=8, free=0, **sizes) == 0
