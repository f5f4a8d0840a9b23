"""The likelihood that GRPO trains: by the last step or by all of them; and which runs it refuses."""

import importlib.util
import json
from decimal import Decimal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loopwright as lw
from loopwright.data.batch import Batch, Order
from loopwright.data.build import build_data
from loopwright.generation.readings import left_padded
from loopwright.parts import Reward, Sample
from loopwright.registry import register
from loopwright.schema import build_kind, check_kind
from loopwright.training.grpo import REWARDS, Exact, Grpo, Number, Prompts, cut, final_number, judge, longest_answer
from loopwright.training.objectives.readout import find_targets
from loopwright.training.rollout import Plan, rollout
from tests.generation.tiny import letter_tokenizer
from tests.own_kinds import own_kinds
from tests.training.objectives.test_losses import places, ragged
from tests.training.runs import PLAIN

RECIPE = {
    "updates": 3, "batch": 8, "accumulate": 1, "seed": 0, "order": {"shuffled": True, "repeat": 1}, "penalties": [],
    "graph": "auto", "data": {"kind": "addition"},
}  # fmt: skip


@settings(max_examples=8)
@given(
    st.sampled_from(["stars-addition-tiny", "huginn-tiny"]),
    st.integers(1, 4),
    st.sampled_from(["last", "uniform", "linear", [1.0, 3.0]]),
    st.floats(0.5, 2),
    st.sampled_from(["left", "right"]),
)
@torch.no_grad()
def test_log_p_is_the_weighted_sum_over_steps(name, depth, credit, temperature, side):
    model, batch = lw.build(name).eval(), ragged(side=side)
    objective = Grpo("exact", credit=credit, temperature=temperature)
    path = rollout(model, batch, Plan(depth, depth), keeps=objective.reads)
    log_p, by_last, entropy = objective.log_likelihoods(model, path, find_targets(batch))
    steps = model(batch.input_ids, attention_mask=batch.attention_mask, depth=depth, output_steps=True).step_logits
    each = [(logits / temperature).log_softmax(-1) for logits in steps]
    raw = {"last": [0] * (depth - 1) + [1], "uniform": [1] * depth, "linear": list(range(1, depth + 1))}
    weights = raw[credit] if isinstance(credit, str) else ([0, 0, 1, 3] if depth > 1 else [3])[-depth:]
    for place, (b, i) in enumerate(places(batch)):
        told = sum(w * x[b, i - 1, batch.labels[b, i]] for w, x in zip(weights, each, strict=True)) / sum(weights)
        assert float(log_p[place]) == pytest.approx(float(told), abs=1e-4)
        last = each[-1][b, i - 1]
        assert float(by_last[place]) == pytest.approx(float(last[batch.labels[b, i]]), abs=1e-4)
        assert float(entropy[place]) == pytest.approx(float(-(last.exp() * last).sum()), abs=1e-4)


def test_all_steps_get_a_gradient_of_their_own_and_the_last_alone_does_not():
    model, batch = lw.build("stars-addition-tiny"), ragged()
    for credit, graded in {"last": [False, False, True], "uniform": [True, True, True]}.items():
        objective = Grpo("exact", credit=credit)
        path = rollout(model, batch, Plan(3, 3))
        states = [s.detach().requires_grad_() for s in path.states]
        kept = states if objective.reads == "every" else states[-1:]
        loss, _ = objective(model, type(path)(**{**vars(path), "states": kept}))
        found = torch.autograd.grad(loss, states, allow_unused=True)
        assert [g is not None and bool(g.abs().sum() > 0) for g in found] == graded


def test_credit_by_the_gate_needs_a_gate_and_every_step():
    objective, batch = Grpo("exact", credit="exit-pdf"), ragged()
    with pytest.raises(ValueError, match=r"^objective \(grpo\): the model's halting is 'none'; allowed: .* halting 'exit'$"):
        objective.prepare(lw.build("stars-addition-tiny"), "cpu")
    model = lw.build("ouro-1.4b-tiny")
    objective.prepare(model, "cpu")
    with pytest.raises(ValueError, match="2 of 3 steps have a gradient"):
        objective(model, rollout(model, batch, Plan(3, 2)))


def test_the_start_model_is_kept_frozen_where_the_loss_holds_on_to_it():
    model = lw.build("stars-addition-tiny")
    objective = Grpo("exact", beta=0.1)
    objective.prepare(model, "cpu")
    before = {name: p.clone() for name, p in objective.reference.named_parameters()}
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    assert all(torch.equal(p, before[name]) for name, p in objective.reference.named_parameters())
    assert not any(p.requires_grad for p in objective.reference.parameters())
    assert all(p.requires_grad for p in model.parameters())
    free = Grpo("exact")
    free.prepare(model, "cpu")
    assert free.reference is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reward": "exakt"}, "unknown kind 'exakt'; did you mean 'exact'"),
        ({"reward": {"kind": "number", "nera": 1}}, "did you mean 'near'"),
        ({"reward": "exact", "group": 1}, "group must be a whole number >= 2"),
        ({"reward": "exact", "temperature": 0}, "temperature must be > 0"),
        ({"reward": "exact", "credit": "unifrom"}, "credit is 'unifrom'"),
        ({"reward": "exact", "credit": "exit_pdf"}, "did you mean 'exit-pdf'"),
    ],
)
def test_what_is_no_grpo_is_refused_in_one_line(options, message):
    with pytest.raises(ValueError) as error:
        Grpo(**options)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "world", "message"),
    [
        ({"batch": 12}, 1, r"batch / accumulate \(12 completions\) must be a multiple of group \(8\)"),
        ({"penalties": [{"kind": "jacobian"}]}, 1, "penalties is not offered"),
        ({}, 2, "runs in one process"),
    ],
)
def test_what_grpo_does_not_offer(changes, world, message, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    splits = build_data(PLAIN["data"])
    with pytest.raises(ValueError, match=message):
        Grpo("exact").check({**RECIPE, **changes}, splits, world)
    Grpo("exact").check(RECIPE, splits, 1)


def chats(folder, counts, **options):
    """Returns conversations with so many answers each."""
    talks = [[{"role": role, "content": "ab"} for _ in range(count) for role in ("user", "assistant")] for count in counts]
    spec = letter_chats(folder, [{"messages": talk} for talk in talks])
    return build_data({**spec, "messages": "messages", **options}, folder / "kept")


def letter_chats(folder, records):
    """Returns the data of a recipe: these records, in letters."""
    folder.mkdir(exist_ok=True)
    letter_tokenizer().save_pretrained(folder / "letters")
    for name, part in {"train": records, "valid": records[:1]}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in part))
    files = {"files": str(folder / "train.jsonl"), "valid_files": str(folder / "valid.jsonl")}
    return {"kind": "chat", "tokenizer": str(folder / "letters"), "length": 64, **files}


def test_rows_of_several_answers_are_refused_by_their_number(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    recipe = {**RECIPE, "updates": 9, "data": {"kind": "chat"}}
    with pytest.raises(ValueError, match=r"^objective \(grpo\): row 2 of the training data has 3 answers; allowed: one"):
        Grpo("exact").check(recipe, chats(tmp_path / "a", [1, 1, 3, 2]), 1)
    with pytest.raises(ValueError, match=r"^objective \(grpo\): row 0 of the training data is packed; set data.packed: false$"):
        Grpo("exact").check(recipe, chats(tmp_path / "b", [1, 1], packed=True), 1)
    Grpo("exact").check(recipe, chats(tmp_path / "b", [1, 1]), 1)


@settings(max_examples=20)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=40), st.integers(0, 5), st.booleans())
def test_the_longest_answer_is_that_of_the_whole_run(lengths, seed, shuffled):
    class Rows:
        def batch(self, indices):
            labels = torch.full((len(indices), 12), -100)
            for row, index in enumerate(indices):
                labels[row, 2 : 2 + lengths[int(index)]] = 1
            return Batch(labels.clamp(min=0), labels)

    recipe = {**RECIPE, "batch": 16, "accumulate": 2, "seed": seed, "order": {"shuffled": shuffled, "repeat": 1}}
    rows = Grpo("exact", group=4).rows(recipe, len(lengths))
    order = Order(len(lengths), seed, shuffled)
    assert rows.tolist() == [int(i) for update in range(3) for i in order.indices(4 * update, 4)]
    assert longest_answer(Rows(), rows) == max(lengths[i] for i in rows.tolist())


def test_without_trl_a_run_says_what_to_install_and_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    recipe = {**PLAIN, "objective": {"kind": "grpo", "reward": "exact", "group": 4}}
    with pytest.raises(ValueError, match=r"trl is not installed; pip install 'loopwright\[rl,data\]'"):
        lw.train(recipe, out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "recipe.yaml").exists()


# Rewards: the built-in ones, functions and classes of the user's own, and what a reward may not do


WORDS = st.text(alphabet="ab1 \n", max_size=4)


@settings(max_examples=40)
@given(WORDS, WORDS, st.booleans())
def test_exact_is_the_answer_itself_and_ended(completion, answer, ended):
    value = Exact()(Sample("", completion, answer, ended))
    assert value == float(ended and completion.strip() == answer.strip())
    assert Exact()(Sample("", f" {answer}\n", answer, True)) == 1


@settings(max_examples=40)
@given(st.integers(-(10**9), 10**9), st.text(alphabet="abc .$\n", max_size=12))
def test_a_final_number_is_found_in_every_spelling(number, words):
    for text in (f"{words}{number}", f"{words}{number:,}{words}", f"7 and 8 #### {number} {words}", f"{words} {number}.00"):
        assert final_number(text) == Decimal(number), text


def test_numbers_as_gsm8k_has_them():
    answer = "He has 16 - 3 = <<16-3=13>>13 eggs.\n#### 1,018"
    assert final_number(answer) == 1018
    for completion, value in {"so 1018.0": 1, "#### 1018 and 7": 1, "1018 and then 7": 0.25, "no idea": 0, "": 0}.items():
        assert Number(near=0.25)(Sample("", completion, answer)) == value, completion


def test_functions_and_classes_of_the_users_own():
    with own_kinds():

        @register("reward", "short")
        def short(sample):
            return 1 / (1 + len(sample.completion))

        @register("reward", "holds")
        class Holds(Reward):
            def __init__(self, word: str = "x") -> None:
                self.word = word

            def __call__(self, sample: Sample) -> float:
                return float(self.word in sample.completion)

        assert short(Sample("", "abc", "")) == 0.25  # the decorator gives the function back
        spec = {"kind": "holds", "word": "b"}
        check_kind("reward", spec, REWARDS)
        assert judge("holds", build_kind(spec, REWARDS), [Sample("", "abc", ""), Sample("", "xyz", "")]) == [1, 0]
        assert judge("short", REWARDS["short"](), [Sample("", "abc", "")]) == [0.25]
        with pytest.raises(ValueError, match="one of loopwright's own"):
            register("reward", "exact")(short)


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        (lambda s: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda s: float("nan"), "gave nan; a reward must be finite"),
        (lambda s: float("inf"), "gave inf"),
        (lambda s: 10**400, "gave 1000"),
        (lambda s: -(10**5000), "gave a whole number of 16610 bits; a reward must be finite"),
        (lambda s: None, "gave None; a reward must be a number"),
        (lambda s: "good\nbad", "a reward must be a number"),
    ],
)
def test_a_reward_that_fails_is_one_line(gives, message):
    with pytest.raises(ValueError) as error:
        judge("mine", gives, [Sample("1+1=\n", "3", "2")])
    assert message in str(error.value) and str(error.value).startswith("reward (mine), prompt '1+1=\\n', completion '3':")
    assert "\n" not in str(error.value)


def test_an_unknown_reward_names_the_nearest():
    with pytest.raises(ValueError, match="unknown kind 'exakt'; did you mean 'exact'"):
        check_kind("objective (grpo): reward", {"kind": "exakt"}, REWARDS)


# Rows as prompts and answers, prompts as a batch, samples as completions


ROWS = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=1, max_size=4)


@settings(max_examples=30)
@given(ROWS)
def test_padding_stands_on_the_left_and_is_masked(rows):
    ids, mask = left_padded([torch.tensor(row) for row in rows], max(map(len, rows)), 9)
    assert [x[m.bool()].tolist() for x, m in zip(ids, mask, strict=True)] == rows
    assert bool((mask.diff(dim=1) >= 0).all()) and bool((ids[mask == 0] == 9).all())


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 5), min_size=5, max_size=5), min_size=1, max_size=4))
def test_a_completion_ends_with_its_first_end_token(rows):
    for row, found in zip(rows, cut(torch.tensor(rows), [4, 5]), strict=True):
        assert row[: len(found)] == found
        assert not {4, 5} & set(found[:-1])
        assert len(found) == 5 or found[-1] in (4, 5)


def test_prompt_and_answer_make_the_row():
    splits = build_data({"kind": "addition", "digits": 2, "train": 20, "valid": 4, "test": 4})
    prompts = Prompts(splits)
    for row in range(20):
        whole = splits.train.batch([row])
        real = whole.input_ids[0][whole.valid[0]].tolist()
        assert prompts.prompt(row) + prompts.answer(row) == real
        assert prompts.answer(row)[-1] == splits.eos_id
        a, b = prompts.text(prompts.prompt(row)).strip(" =").split("+")
        assert int(prompts.text(prompts.answer(row)).strip()[::-1]) == int(a) + int(b)
