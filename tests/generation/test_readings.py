"""One pass over all depths gives the bits of a pass per depth, and decoding finds what one pass finds."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

import loopwright as lw
from loopwright.data.batch import Batch
from loopwright.generation.readings import can_decode, check_depths, decode_exact, next_token_by_depth, readings, sees_future
from loopwright.metrics.score import exact_rows, row_losses
from loopwright.model import room
from tests.cases import noisy
from tests.leaks import LEAKS, leaking

DEPTHS = [1, 3]


def test_answers_in_several_pieces_are_not_decoded() -> None:
    ids, none = torch.arange(8).view(2, 4), -100
    for labels, one in {
        (none, 1, 2, none): True,
        (0, 1, 2, 3): True,
        (none, 1, none, 3): False,
        (0, none, none, none): False,
    }.items():
        batch = Batch(ids, torch.tensor([labels, [none, 5, 6, 7]]))
        assert can_decode(batch) == one, labels
    assert not can_decode(Batch(ids, torch.tensor([[none, 1, 2, 2], [none, 5, 6, 7]])))
    assert not can_decode(Batch(ids, ids, segment_ids=torch.zeros_like(ids)))


@pytest.mark.filterwarnings("ignore:controller. pooling")
@pytest.mark.parametrize("name", LEAKS)
def test_what_sees_the_future_is_found_by_two_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.arange(12).view(2, 6)
    sound = noisy("huginn-tiny", depth=2).train()
    assert not sees_future(sound, ids) and sound.training
    model = leaking(name, monkeypatch)
    assert sees_future(model, ids) and sees_future(model, ids, 1) and not model.training
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    assert sees_future(model, ids) == (name == "controller"), "of what is no number nothing is said"


def batch_for(model: lw.LoopedForCausalLM, *, padded: str = "right", seed: int = 0) -> Batch:
    """Returns three rows with prompts and answers of different length."""
    torch.manual_seed(seed)
    ids = torch.randint(0, model.config.vocab_size, (3, 9))
    labels, mask = torch.full_like(ids, -100), torch.ones_like(ids)
    for row, (prompt, answer) in enumerate([(4, 5), (3, 3), (5, 2)]):
        first, last = prompt, prompt + answer
        if padded == "left":
            first, last = 9 - answer, 9
        labels[row, first:last] = ids[row, first:last]
        mask[row, last:] = 0
        mask[row, : first - prompt] = 0
    return Batch(ids, labels, None if padded == "no" else mask)


@pytest.mark.parametrize(
    "name", ["stars-addition-tiny", "huginn-tiny", "ouro-1.4b-tiny", "asura-tiny", "ouroboros-qwen2.5-3b-tiny", "universal-tiny"]
)
@pytest.mark.parametrize("padded", ["right", "left", "no"])
def test_one_sweep_is_separate_passes(name: str, padded: str) -> None:
    model = noisy(name)
    batch = batch_for(model, padded=padded)
    found = list(readings(model, batch, DEPTHS, change=True))
    assert [reading.depth for reading in found] == DEPTHS
    for reading in found:
        with torch.no_grad():
            output = model(batch.input_ids, attention_mask=batch.attention_mask, labels=batch.labels, depth=reading.depth)
        loss, targets = row_losses(output.logits, batch.labels)
        assert torch.equal(reading.loss, loss) and torch.equal(reading.targets, targets)
        assert torch.equal(reading.exact, exact_rows(output.logits, batch.labels))
        assert (reading.loss.sum() / reading.targets.sum()).item() == pytest.approx(output.loss.item(), rel=1e-6)
    assert len({reading.loss.sum().item() for reading in found}) == len(DEPTHS)


def test_packed_documents_are_kept_apart() -> None:
    model = noisy("stars-addition-tiny")
    ids = torch.randint(0, 15, (2, 8))
    segments = torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2], [0] * 8])
    (whole,) = readings(model, Batch(ids, ids.clone(), segment_ids=segments), [3])
    with torch.no_grad():
        logits = model(ids, segment_ids=segments, depth=3).logits
    assert torch.equal(whole.loss, row_losses(logits, ids)[0])


def test_a_dense_model_has_one_depth() -> None:
    model = noisy("huginn-tiny").without_adapters()
    batch = batch_for(model)
    for depths in (None, [1]):
        (reading,) = readings(model, batch, depths, change=True)
        assert reading.depth == 1 and not reading.change.any()
        assert torch.equal(
            reading.loss, row_losses(model(batch.input_ids, attention_mask=batch.attention_mask).logits, batch.labels)[0]
        )
    with pytest.raises(ValueError, match="depth: 2 was asked of a dense model"):
        check_depths(model.config, [1, 2])
    with pytest.raises(ValueError, match="depth: 2 was asked of a dense model"):
        readings(model, batch, [2])


def test_depths_are_sorted_checked_and_default_to_the_models_own() -> None:
    config = lw.preset("asura-tiny")
    assert check_depths(config, [3, 1, 3]) == [1, 3] and check_depths(config) == [config.depth]
    with pytest.raises(ValueError, match="beyond max_steps"):
        check_depths(config, [1, 99])
    with pytest.raises(ValueError, match="depth: 0; allowed"):
        check_depths(config, [0, 1])
    with pytest.raises(ValueError, match="none are given"):
        check_depths(config, [])


def test_no_state_of_an_earlier_depth_is_kept() -> None:
    model = noisy("stars-addition-tiny")
    states: list[Any] = []

    def watched(s: torch.Tensor, e: torch.Tensor, t: int, p: Any) -> torch.Tensor:
        after = model.step(s, e, t, p)
        states.append(weakref.ref(after))
        return after

    for reading in readings(model, batch_for(model), range(1, 13), change=True, step=watched):
        assert len(states) == reading.depth
        assert sum(ref() is not None for ref in states) <= 2
    assert len(states) == 12


def test_only_the_depths_asked_for_are_read_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = noisy("huginn-tiny")
    reads, features = [], model.features
    monkeypatch.setattr(model, "features", lambda s, p: reads.append(s) or features(s, p))
    assert [reading.depth for reading in readings(model, batch_for(model), [2, 5])] == [2, 5] and len(reads) == 2


def test_gradients_are_off_inside_and_on_outside() -> None:
    model = noisy("stars-addition-tiny")
    for reading in readings(model, batch_for(model), [1, 2]):
        assert torch.is_grad_enabled() and not reading.loss.requires_grad


def test_training_mode_is_refused() -> None:
    model = noisy("stars-addition-tiny").train()
    with pytest.raises(ValueError, match=r"training mode, where dropout is on; call model.eval\(\) first"):
        readings(model, batch_for(model), [1])


def test_change_is_measured_where_a_target_sees() -> None:
    model = noisy("stars-addition-tiny")
    batch = batch_for(model)
    found = {reading.depth: reading.change for reading in readings(model, batch, [1, 2, 3], change=True)}
    with torch.no_grad():
        states = model(batch.input_ids, attention_mask=batch.attention_mask, depth=3, output_steps=True).states
    ends = [8, 5, 6]  # the place of the last target is seen by none
    for row, end in enumerate(ends):
        before, after = states[1][row, :end], states[2][row, :end]
        assert found[3][row].item() == pytest.approx(((after - before).norm() / before.norm()).item(), rel=1e-5)
    e, p = model.embed(batch.input_ids, attention_mask=batch.attention_mask)
    start = model.start_state(e, p)
    moved = (states[0][0, :8] - start[0, :8]).norm() / start[0, :8].norm()
    assert found[1][0].item() == pytest.approx(moved.item(), rel=1e-5)


def test_change_without_padding_stops_before_the_last_target_too() -> None:
    model = noisy("stars-addition-tiny")
    batch = batch_for(model, padded="no")
    (found,) = readings(model, batch, [2], change=True)
    with torch.no_grad():
        first, second = model(batch.input_ids, depth=2, output_steps=True).states
    for row, end in enumerate([8, 5, 6]):
        moved = (second[row, :end] - first[row, :end]).norm() / first[row, :end].norm()
        assert found.change[row].item() == pytest.approx(moved.item(), rel=1e-5)


def test_what_is_not_finite_in_padding_does_not_count() -> None:
    model = noisy("stars-addition-tiny")
    batch = batch_for(model)

    def spoilt(s: torch.Tensor, e: torch.Tensor, t: int, p: Any) -> torch.Tensor:
        return torch.where(batch.valid[..., None], model.step(s, e, t, p), torch.inf) if t == 1 else model.step(s, e, t, p)

    assert [reading.change.isfinite().all().item() for reading in readings(model, batch, [2], change=True, step=spoilt)] == [True]


# decoding


def own_answers(model: lw.LoopedForCausalLM, depth: int | None, eos_id: int | None, *, rows: int = 12) -> Batch:
    """Returns prompts of different length with the model's own greedy answers, found without a cache, one row at a time."""
    torch.manual_seed(1)
    sequences = []
    for row in range(rows):
        ids = torch.randint(0, model.config.vocab_size, (1, 2 + row % 4))
        prompt = ids.shape[1]
        for _ in range(6):
            with torch.no_grad():
                token = model(ids, depth=depth).logits[:, -1:].argmax(-1)
            ids = torch.cat([ids, token], dim=1)
            if int(token) == eos_id:
                break
        sequences.append((ids[0], prompt))
    width = max(len(ids) for ids, _ in sequences)
    tokens, labels, mask = (
        torch.zeros(rows, width, dtype=torch.long),
        torch.full((rows, width), -100),
        torch.zeros(rows, width).long(),
    )
    for row, (ids, prompt) in enumerate(sequences):
        tokens[row, : len(ids)], mask[row, : len(ids)] = ids, 1
        labels[row, prompt : len(ids)] = ids[prompt:]
    return Batch(tokens, labels, mask)


def spoil(batch: Batch, rows: list[int], place: int, vocabulary: int) -> Batch:
    """Returns the batch with one answer token of some rows changed (0: the first, −1: the last)."""
    tokens, labels = batch.input_ids.clone(), batch.labels.clone()
    for row in rows:
        spot = (labels[row] != -100).nonzero()[:, 0][place]
        tokens[row, spot] = labels[row, spot] = (tokens[row, spot] + 1) % vocabulary
    return Batch(tokens, labels, batch.attention_mask)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "depth"),
    [("stars-addition-tiny", 3), *(pytest.param(more, None, marks=pytest.mark.slow) for more in ("huginn-tiny", "dense"))],
)
def test_decoding_is_teacher_forced_exactness(name: str, depth: int | None) -> None:
    model = noisy("huginn-tiny").without_adapters() if name == "dense" else noisy(name)
    free = own_answers(model, depth, None)
    eos_id = int(free.labels[free.labels != -100].bincount().argmax())
    batch = own_answers(model, depth, eos_id)
    lengths = (batch.labels != -100).sum(1)
    ended = (batch.labels == eos_id).any(1)
    assert len(lengths.unique()) > 1 and ended.any() and not ended.all()  # short, long and unended answers
    for case, wrong in [(batch, []), (spoil(batch, [0, 3, 7], 0, 15), [0, 3, 7]), (spoil(batch, [1, 2], -1, 15), [1, 2])]:
        found = decode_exact(model, case, depth, eos_id=eos_id, pad_id=13)
        (one_pass,) = readings(model, case, None if depth is None else [depth])
        assert found.tolist() == one_pass.exact.tolist() == [row not in wrong for row in range(12)]


def test_decoding_stops_at_the_end_token(monkeypatch: pytest.MonkeyPatch) -> None:
    model = noisy("stars-addition-tiny")
    batch = own_answers(model, 3, None, rows=1)
    answer = batch.labels[0][batch.labels[0] != -100]
    produced, generate = [], model.generate
    monkeypatch.setattr(model, "generate", lambda *args, **given: produced.append(generate(*args, **given)) or produced[-1])
    assert not decode_exact(model, spoil(batch, [0], -1, 15), 3, eos_id=int(answer[0]), pad_id=13).any()
    assert produced[0].shape[1] == 2 + 1  # prompt and end token, though the row has six targets


def test_decoding_goes_on_where_the_answer_should_have_ended() -> None:
    model = noisy("stars-addition-tiny")
    batch = own_answers(model, 3, None)
    labels = batch.labels.clone()
    labels[:, -1] = -100
    places = (labels != -100).long().cumsum(1).argmax(1)
    cut = Batch(batch.input_ids, labels, batch.attention_mask)
    assert decode_exact(model, cut, 3, eos_id=None).all()
    unended = Batch(batch.input_ids.scatter(1, places[:, None], 14), labels.scatter(1, places[:, None], 14), batch.attention_mask)
    expected = [int(batch.labels[row, place]) == 14 for row, place in enumerate(places)]
    assert decode_exact(model, unended, 3, eos_id=14, pad_id=13).tolist() == expected


def test_the_folders_own_sampling_does_not_reach_the_comparison() -> None:
    model = noisy("stars-addition-tiny")
    batch = own_answers(model, 2, None)
    model.generation_config.update(do_sample=True, temperature=5.0, repetition_penalty=3.0, num_beams=2)
    assert decode_exact(model, batch, 2, eos_id=None).all()


def test_rows_that_cannot_be_decoded_are_refused() -> None:
    model = noisy("stars-addition-tiny")
    ids = torch.randint(0, 15, (1, 6))
    gap = torch.tensor([[-100, 3, -100, 4, 5, -100]])
    with pytest.raises(ValueError, match="row 0 has 3 targets with gaps or none"):
        decode_exact(model, Batch(ids, gap), 2, eos_id=14)
    with pytest.raises(ValueError, match="row 0 has 0 targets"):
        decode_exact(model, Batch(ids, torch.full_like(ids, -100)), 2, eos_id=14)
    in_place = torch.where(torch.arange(6) > 2, (ids + 1) % 15, -100)
    with pytest.raises(ValueError, match="the targets of row 0 are not its tokens"):
        decode_exact(model, Batch(ids, in_place), 2, eos_id=14)
    with pytest.raises(ValueError, match="several documents"):
        decode_exact(model, Batch(ids, ids, segment_ids=torch.zeros_like(ids)), 2, eos_id=14)


def test_what_is_no_number_is_never_right() -> None:
    """The largest of logits that are all NaN is the first token: an answer of that token alone would count as right."""
    model = noisy("universal-tiny").eval()
    with torch.no_grad():
        [*model.core.parameters()][-1].view(-1)[0] = float("nan")  # past attention, which hides NaN scores on some processors
    ids = torch.zeros(2, 4, dtype=torch.long)
    (found,) = readings(model, Batch(ids, ids), [2])
    assert not found.exact.any() and not found.loss.isfinite().any()


IDS = torch.tensor([[3, 14, 15, 9, 2, 6]])


@pytest.mark.parametrize("name", ["huginn-tiny", "ouro-1.4b-tiny", "asura-tiny", "ouroboros-qwen2.5-3b-tiny"])
def test_each_step_is_a_pass_of_that_depth(name: str) -> None:
    model = noisy(name)
    guesses = next_token_by_depth(model, IDS, 3)
    last = model(IDS, depth=3).logits[0, -1].log_softmax(-1)
    assert [guess.step for guess in guesses] == [1, 2, 3]
    for guess in guesses:
        log_probs = model(IDS, depth=guess.step).logits[0, -1].log_softmax(-1)
        best = log_probs.exp().topk(3)
        assert guess.tokens == tuple(best.indices.tolist())
        assert guess.probabilities == pytest.approx(best.values.tolist(), abs=1e-5)
        assert guess.entropy == pytest.approx(torch.distributions.Categorical(logits=log_probs).entropy().item(), abs=1e-4)
        divergence = torch.nn.functional.kl_div(last, log_probs, log_target=True, reduction="sum").item()
        assert guess.divergence == pytest.approx(divergence, abs=1e-4)
    assert guesses[-1].divergence == 0
    assert guesses[0].divergence > 0


def test_a_dense_model_has_one_guess_and_refuses_a_depth() -> None:
    model = lw.LoopedForCausalLM(lw.LoopedConfig(prelude_layers=2, core_layers=0, depth=1)).eval()
    assert len(next_token_by_depth(model, IDS[0])) == 1
    with pytest.raises(ValueError, match="dense model"):
        next_token_by_depth(model, IDS, 2)


def test_the_seed_of_the_state_counts() -> None:
    model = noisy("huginn-tiny")
    one, same, other = (next_token_by_depth(model, IDS, 1, state_seed=seed)[0] for seed in (1, 1, 2))
    assert one == same
    assert one.probabilities != other.probabilities


def test_no_gradient_and_bad_input() -> None:
    model = noisy("huginn-tiny")
    with pytest.raises(ValueError, match="one row"):
        next_token_by_depth(model, IDS.expand(2, -1))
    with pytest.raises(ValueError, match="top 0"):
        next_token_by_depth(model, IDS, top=0)
    assert len(next_token_by_depth(model, IDS, 1, top=5)[0].tokens) == 5


def test_logits_that_are_not_finite_are_an_error():
    model = noisy("huginn-tiny")
    with torch.no_grad():
        model.lm_head.weight[5] = torch.inf
    with pytest.raises(ValueError, match=r"not finite after 4 of 4 steps, first after step 1"):
        next_token_by_depth(model, torch.tensor([2, 3]))


def test_a_depth_whose_logits_do_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(room, "free_bytes", lambda device: 2**30)
    with pytest.raises(ValueError, match=r"the logits of 1,000,000 steps take [\d,.]+ GiB, and 1\.0 GiB are free on cpu"):
        next_token_by_depth(noisy("huginn-tiny"), torch.tensor([2, 3]), 10**6)
