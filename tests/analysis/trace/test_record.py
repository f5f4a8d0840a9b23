"""Files of traces: saved = loaded, resumed = whole bit for bit, another set refused, nothing lost."""

import json

import pytest
import torch
from safetensors.torch import save_file

from loopwright.analysis.trace import record
from loopwright.analysis.trace.edit import at, zero
from loopwright.analysis.trace.record import OutOfMemory, TraceSet, fingerprint, load_trace, pad, save_trace, trace_prompts
from loopwright.analysis.trace.trace import trace
from tests.cases import noisy

PROMPTS = [[1, 2, 3], [4, 5, 6, 7], [8], [9, 10], [11, 12, 13]]


def run(folder, model=None, **changes):
    return trace_prompts(
        model or noisy("huginn-tiny"), PROMPTS, folder, **{"depth": 3, "batch": 2, "about": {"model": "m"}} | changes
    )


def test_saved_is_loaded(tmp_path):
    made = trace(noisy("huginn-tiny"), torch.tensor([[1, 2, 3]]), 3, capture={"residual": [-1]})
    save_trace(made, tmp_path / "x.safetensors")
    back = load_trace(tmp_path / "x.safetensors")
    assert back.places == made.places and torch.equal(back.input_ids, made.input_ids)
    assert set(back.values) == set(made.values) and set(back.captured) == {"residual"}
    assert all(torch.equal(back.values[k].nan_to_num(), made.values[k].nan_to_num()) for k in made.values)


@pytest.mark.slow
def test_every_changed_byte_of_a_trace_is_found(tmp_path):
    path = tmp_path / "x.safetensors"
    save_trace(trace(noisy("huginn-tiny"), torch.tensor([[1, 2, 3]]), 2), path)
    whole = path.read_bytes()
    spots = [*range(0, len(whole), 29), *range(min(400, len(whole)))]
    for changed in [whole[:i] + bytes([whole[i] ^ 4]) + whole[i + 1 :] for i in spots] + [whole[:i] for i in spots]:
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=r"x.safetensors: (not a trace, or damaged|its content changed).*; remove it"):
            load_trace(path)
    path.write_bytes(whole)
    load_trace(path)


@pytest.mark.long
def test_a_changed_byte_of_a_set_is_found(tmp_path):
    run(tmp_path)
    path = tmp_path / "set.json"
    whole = path.read_bytes()
    some = range(0, len(whole), 13)  # each costs a reading; random ones are the attack suite's
    for changed in [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in some] + [whole + b" "]:
        path.write_bytes(changed)
        for read in (TraceSet, run):
            with pytest.raises(ValueError, match=r"set.json: (its content changed|not readable as JSON|.* stands twice)"):
                read(tmp_path)
    path.write_bytes(whole)
    assert len(list(run(tmp_path))) == 5


@pytest.mark.long
def test_a_killed_run_goes_on_and_gives_the_same_bytes(tmp_path, monkeypatch):
    whole = run(tmp_path / "whole")
    saved, calls = record.save_trace, []

    def dies(found, path):
        calls.append(path)
        if len(calls) == 4:
            raise KeyboardInterrupt
        saved(found, path)

    monkeypatch.setattr(record, "save_trace", dies)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut")
    assert len(list((tmp_path / "cut").glob("*.safetensors"))) == 3
    monkeypatch.setattr(record, "save_trace", saved)
    traced = []
    monkeypatch.setattr(record, "trace", lambda *a, **k: traced.append(len(a[1])) or trace(*a, **k))
    resumed = run(tmp_path / "cut")
    assert traced == [2, 1]  # the first batch was there, the second is made whole again
    assert len(resumed) == len(whole) == 5
    for index in range(5):
        assert resumed.path(index).read_bytes() == whole.path(index).read_bytes()


def test_each_example_stands_without_padding(tmp_path):
    found = run(tmp_path)
    assert [list(one.input_ids[0]) for one in found] == PROMPTS
    assert [one.values["token_cosine"].shape[-1] for one in TraceSet(tmp_path)] == [3, 4, 1, 2, 3]


def test_another_set_is_refused_and_nothing_of_it_touched(tmp_path):
    run(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="holds another set of traces \\(depth is 3 there and 4 here\\)"):
        run(tmp_path, depth=4)
    with pytest.raises(ValueError, match="model is 'm' there and 'n' here"):
        run(tmp_path, about={"model": "n"})
    (tmp_path / "set.json").unlink()
    with pytest.raises(ValueError, match=r"holds traces, but no set\.json"):
        run(tmp_path)
    assert {name: data for name, data in before.items() if name != "set.json"} == {
        p.name: p.read_bytes() for p in tmp_path.iterdir()
    }


def test_other_weights_are_another_set(tmp_path):
    model = noisy("huginn-tiny")
    run(tmp_path, model)
    with torch.no_grad():
        model.core[0].mlp.up_proj.weight.add_(0.01)
    with pytest.raises(ValueError, match="holds another set of traces \\(weights is"):
        run(tmp_path, model)


def test_a_fingerprint_sees_every_tensor():
    model = noisy("huginn-tiny")
    seen = {fingerprint(model)}
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.mul_(1.5).add_(0.1)
        seen.add(fingerprint(model))
    assert len(seen) == 1 + len(list(model.parameters()))


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to …")],
)
def test_out_of_memory_says_the_batch_and_keeps_what_is_there(tmp_path, monkeypatch, error):
    def fails(model, ids, *a, **k):
        if ids.shape[1] < 4:
            raise error
        return trace(model, ids, *a, **k)

    monkeypatch.setattr(record, "trace", fails)
    with pytest.raises(OutOfMemory, match="out of memory at batch 2; 2 of 5 examples are kept; batch 1 takes about half"):
        run(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    monkeypatch.setattr(record, "trace", trace)
    assert len(list(run(tmp_path))) == 5


@pytest.mark.long
def test_after_out_of_memory_a_smaller_batch_goes_on_in_the_same_folder(tmp_path, monkeypatch):
    def fails(model, ids, *a, **k):
        if 9 in ids:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return trace(model, ids, *a, **k)

    whole = run(tmp_path / "whole", batch=1)
    monkeypatch.setattr(record, "trace", fails)
    with pytest.raises(OutOfMemory, match="out of memory at batch 3; 3 of 5 examples are kept; batch 1 takes about half"):
        run(tmp_path / "cut", batch=3)
    before = {path: path.stat() for path in (tmp_path / "cut").glob("*.safetensors")}
    seen = []
    monkeypatch.setattr(record, "trace", lambda *a, **k: seen.append(a[1].shape[0]) or trace(*a, **k))
    resumed = run(tmp_path / "cut", batch=2)
    assert seen == [2, 1]  # examples 2 and 3, of which the first is there and stays as it is, and example 4
    assert {path: path.stat() for path in before} == before
    for one, alone in zip(resumed, whole, strict=True):
        for name, value in alone.values.items():
            assert torch.allclose(one.values[name].double(), value.double(), atol=2e-3, equal_nan=True), name


def test_mistakes_are_one_line(tmp_path):
    model = noisy("huginn-tiny")
    for prompts in ([], [[1], []]):
        with pytest.raises(ValueError, match="an empty prompt, or none at all"):
            trace_prompts(model, prompts, tmp_path)
    with pytest.raises(ValueError, match=r"batch must be a whole number >= 1 \(got 0\)"):
        trace_prompts(model, PROMPTS, tmp_path, batch=0)
    with pytest.raises(FileNotFoundError, match="there is no such trace"):
        load_trace(tmp_path / "none")
    (tmp_path / "bad").write_bytes(b"12345")
    with pytest.raises(ValueError, match="bad: not a trace, or damaged; remove it to have it made again"):
        load_trace(tmp_path / "bad")
    save_file({"x": torch.zeros(1)}, tmp_path / "other")
    with pytest.raises(ValueError, match="not a trace"):
        load_trace(tmp_path / "other")


@pytest.mark.long
def test_an_edited_set_must_be_named_and_is_another_set(tmp_path):
    edit, model = zero("mlp", at()), noisy("huginn-tiny")
    run(tmp_path / "plain", model)
    for about in (None, {"model": "m"}, {"edited": ""}, {"edited": " "}, {"edited": None}, {"edited": 1}):
        for folder in ("plain", "new"):
            with pytest.raises(ValueError, match=r"edit: about\['edited'\] is .*; allowed: words that name the edit"):
                run(tmp_path / folder, model, about=about, edit=edit)
    with pytest.raises(ValueError, match=r"about: 'edited' is 'no MLP', but no edit was given; allowed: leave it out"):
        run(tmp_path / "new", model, about={"edited": "no MLP"})
    assert not (tmp_path / "new").exists()
    named = {"model": "m", "edited": "no MLP"}
    with pytest.raises(ValueError, match="edited is None there and 'no MLP' here"):
        run(tmp_path / "plain", model, about=named, edit=edit)
    plain, edited = (
        run(tmp_path / name, model, about=about, edit=tap)
        for name, about, tap in (("plain", {"model": "m"}, None), ("edited", named, edit))
    )
    assert all(not torch.equal(a.values["norm"], b.values["norm"]) for a, b in zip(plain, edited, strict=True))
    assert [len(run(tmp_path / "other", model, about={"edited": ""}))] == [5]


def test_what_cannot_be_traced_is_refused_before_anything_is_written(tmp_path):
    model = noisy("huginn-tiny", max_position_embeddings=4)
    for rows, options, words in (
        ([[1, 2], [1] * 5], {}, "prompts: number 2 has 5 tokens; the model's context holds 4"),
        ([[1, 2], [1, 96]], {}, "prompts: number 2 holds token id 96; the model knows 96 tokens, 0 to 95"),
        ([[1, 2], [-1, 2]], {}, "prompts: number 2 holds token id -1; the model knows 96 tokens, 0 to 95"),
        ([[1, 2, 3], [1]], {"capture": {"residual": [2]}}, "capture: token 2; allowed: -1 to 0"),
        ([[1, 2]], {"capture": ["residual"]}, "capture: "),
        ([[1, 2]], {"capture": {"logits": [0]}}, "capture: unknown point"),
        ([[1, 2]], {"collect": ("attentoin",)}, "collect: unknown 'attentoin'"),
        ([[1, 2]], {"collect": ("fixed",)}, "collect: 'fixed' compares"),
        ([[1, 2]], {"edit": zero("mlp", at(step=7)), "about": {"edited": "x"}}, "edit: mlp at step 7 would change nothing"),
    ):
        with pytest.raises(ValueError, match=words):
            trace_prompts(model, rows, tmp_path / "new", **{"depth": 3, "batch": 1} | options)
        assert not (tmp_path / "new").exists()


def test_a_capture_may_be_read_once(tmp_path):
    found = run(tmp_path, capture={"residual": iter([-1])})
    assert found.about["capture"] == {"residual": [-1]} and all(one.captured["residual"].shape[2] == 1 for one in found)


def test_padding_is_behind():
    ids, mask = pad([[1, 2], [3]])
    assert ids.tolist() == [[1, 2], [3, 0]] and mask.tolist() == [[1, 1], [1, 0]]


def test_an_example_of_ouros_shapes_takes_a_few_megabytes(tmp_path):
    # the numbers kept per place and head, at 24 layers, 16 heads, 128 steps and 128 tokens; widths do not enter
    small = noisy("ouro-1.4b-tiny", num_attention_heads=16, num_key_value_heads=16, head_dim=4, core_layers=2)
    trace_prompts(small, [[1] * 128], tmp_path, depth=8, batch=1)
    per_place = (tmp_path / "000000.safetensors").stat().st_size / (2 * 8)
    assert per_place * 24 * 128 < 5e6
    assert json.loads((tmp_path / "set.json").read_text())["examples"] == 1
