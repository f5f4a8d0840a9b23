"""Edits by equality: a pass with its own values is the same pass, a zeroed branch is a model without it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.analysis.trace.edit import ablate_massive, at, chain, change, check_edit, noise, patch, recorded, shown, swap, zero
from loopwright.analysis.trace.trace import trace
from loopwright.model.presets import PRESETS
from loopwright.model.taps import OF_PARTS, POINTS, Recorder
from tests.cases import gap, noisy

IDS = torch.randint(0, 96, (2, 7), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def model():
    return noisy("huginn-tiny", prelude_layers=2, core_layers=2)


@pytest.fixture(scope="module")
def seen(model):
    recorder = Recorder()
    with torch.no_grad():
        model(IDS, depth=3, tap=recorder)
    return recorder.seen


@torch.no_grad()
def logits(model, tap=None, depth=3):
    return model(IDS, depth=depth, tap=tap).logits


@pytest.mark.parametrize("name", POINTS)
def test_patching_with_its_own_values_changes_no_bit(model, seen, name):
    if name in OF_PARTS:
        model, recorder = noisy("ouroboros-qwen2.5-3b-tiny", std=0.3), Recorder()
        logits(model, recorder)
        seen = recorder.seen
    values = recorded(seen, name)
    assert len(values) >= 1
    assert torch.equal(logits(model, patch(name, at(), values)), logits(model))


def test_patching_with_another_passs_values_gives_the_other_pass(model, seen):
    with torch.no_grad():
        other = Recorder(("state",))
        theirs = model(IDS.flip(1), depth=3, tap=other).logits
    last = patch("state", at(step=2), recorded(other.seen, "state"))
    assert torch.equal(logits(model, last), theirs)
    assert not torch.equal(theirs, logits(model))


def test_patching_some_tokens_leaves_those_before_them(model, seen):
    tokens = torch.zeros(2, 7, dtype=torch.bool)
    tokens[:, 4] = True
    values = {place: value + 1 for place, value in recorded(seen, "residual").items()}
    found = logits(model, patch("residual", at(stack="core", step=0, layer=0), values, tokens=tokens))
    assert torch.equal(found[:, :4], logits(model)[:, :4]) and gap(found[:, 4:], logits(model)[:, 4:]) > 1e-4


@pytest.mark.parametrize("name", ["attention", "mlp"])
def test_a_zeroed_branch_is_a_model_without_it(model, name):
    without = noisy("huginn-tiny", prelude_layers=2, core_layers=2)
    branch = without.core[1].self_attn.o_proj if name == "attention" else without.core[1].mlp.down_proj
    with torch.no_grad():
        for parameter in branch.parameters():
            parameter.zero_()
    assert torch.equal(logits(model, zero(name, at(stack="core", layer=1))), logits(without))
    assert gap(logits(model), logits(without)) > 1e-4


@pytest.mark.parametrize(("layer", "stack", "index"), [(1, "prelude", 1), (3, "core", 1)])
def test_the_massive_ablation_zeroes_one_layers_mlp(model, layer, stack, index):
    assert torch.equal(logits(model, ablate_massive(model.config, layer)), logits(model, zero("mlp", at(stack=stack, layer=index))))
    with pytest.raises(ValueError, match="layer 4; allowed: 0 to 3"):
        ablate_massive(model.config, 4)


def test_the_second_layer_of_a_model_without_prelude_is_zeroed_at_every_step():
    model = noisy("ouro-1.4b-tiny", core_layers=2)
    assert torch.equal(logits(model, ablate_massive(model.config)), logits(model, zero("mlp", at(stack="core", layer=1))))


def test_swapping_a_step_with_itself_or_twice_changes_nothing(model, seen):
    residuals = recorded(seen, "residual")
    assert torch.equal(logits(model, swap("residual", residuals, 1, 1)), logits(model))
    swapped = swap("residual", residuals, 0, 2)
    recorder = Recorder(("residual",))
    with torch.no_grad():
        model(IDS, depth=3, tap=chain(swapped, recorder))
    assert torch.equal(recorder.seen["residual", "core", 0, 1], residuals["core", 2, 1])
    assert torch.equal(recorder.seen["residual", "core", 2, 1], residuals["core", 0, 1])


def test_noise_is_a_pure_function_of_seed_and_place(model):
    edit = noise("state", at(step=1), size=0.1, seed=5)
    first = logits(model, edit)
    assert torch.equal(logits(model, edit), first)
    assert torch.equal(logits(model, noise("state", at(step=1), size=0.0, seed=5)), logits(model))
    assert gap(logits(model, noise("state", at(step=1), size=0.1, seed=6)), first) > 1e-4
    with torch.no_grad():
        alone = model(IDS[1:], depth=3, tap=edit).logits
    assert gap(alone, first[1:]) < 1e-5


def test_noise_has_the_size_asked_for():
    value = 3 * torch.randn(2, 50, 400)
    moved = noise("state", at(), size=0.1, seed=0)("state", value, stack="core", step=0, layer=0) - value
    assert abs(moved.std().item() / (0.1 * value.std().item()) - 1) < 0.05


def test_chain_applies_in_order(model):
    doubled = change("state", at(), lambda value, _: 2 * value)
    added = change("state", at(), lambda value, _: value + 1)
    value = torch.ones(1)
    assert chain(doubled, added)("state", value, stack="core", step=0, layer=0).item() == 3
    assert chain(added, doubled)("state", value, stack="core", step=0, layer=0).item() == 4


def test_a_trace_measures_the_edited_pass(model):
    found = trace(model, IDS, 2, edit=zero("residual", at(stack="core", step=1, layer=0)))
    norm = found.core("norm")
    assert (norm[:, 1] == 0).all() and (norm[:, 0] > 0).all()


@pytest.mark.parametrize("name", [*PRESETS, "dense"])
def test_the_places_a_point_is_shown_at_are_those_of_a_trace_and_of_a_pass(name):
    model = noisy("huginn-tiny").without_adapters() if name == "dense" else noisy(f"{name}-tiny")
    depth, recorder = None if name == "dense" else 2, Recorder()
    found = trace(model, IDS % model.config.vocab_size, depth, collect=(), edit=recorder)
    for point in POINTS:
        assert sorted(shown(point, model.config, found.places.steps)) == sorted(recorded(recorder.seen, point)), point
    assert len(recorder.seen) > found.places.count
    passed = Recorder()  # a pass of the model itself, read out after every step
    model(IDS % model.config.vocab_size, depth=depth, tap=passed, output_steps=True)
    steps = found.places.steps
    assert set(passed.seen) == {(point, *place) for point in POINTS for place in shown(point, model.config, steps, head=True)}


numbers = st.none() | st.integers(0, 4) | st.sets(st.integers(0, 4), min_size=1, max_size=2)


@pytest.mark.long
@settings(max_examples=60)
@given(point=st.sampled_from(POINTS), stack=st.sampled_from([None, "prelude", "core", "coda"]), step=numbers, layer=numbers)
def test_an_edit_is_refused_where_it_would_change_nothing_and_only_there(model, point, stack, step, layer):
    made, where = [], at(stack=stack, step=step, layer=layer)
    seen = change(point, where, lambda value, place: made.append(place) or value)
    trace(
        model, IDS[:1, :2], 2, collect=(), edit=lambda *a, **k: seen(*a, **k)
    )  # a tap of one's own: nothing is known of its places
    if made:
        trace(model, IDS[:1, :2], 2, collect=(), edit=seen)
    else:
        with pytest.raises(ValueError, match=f"edit: {point} at "):
            trace(model, IDS[:1, :2], 2, collect=(), edit=seen)


def test_an_edit_without_a_place_names_it_and_what_the_pass_has(model, seen):
    had = "the pass shows it at: prelude (layers 0 to 1, step 0), core (layers 0 to 1, steps 0 to 5), coda (layers 0 to 1, step 0)"
    states = recorded(seen, "state")
    for edit, words in (
        (zero("mlp", at(layer=99)), f"edit: mlp at layer 99 would change nothing; {had}"),
        (zero("mlp", at(step=99)), f"edit: mlp at step 99 would change nothing; {had}"),
        (zero("mlp", at(stack="prelude", step=1)), f"edit: mlp at stack prelude, step 1 would change nothing; {had}"),
        (zero("mlp", lambda stack, step, layer: False), "edit: mlp at the places of a function would change nothing; "),
        (
            zero("state", at(layer=0)),
            "edit: state at layer 0 would change nothing; the pass shows it at: core (layer 2, steps 0 to 5)",
        ),
        (zero("logits", at()), "edit: logits at any place would change nothing; the pass shows it at: no place"),
        (swap("state", states, 40, 41), "edit: state at stack core, step 40 or 41 would change nothing; "),
    ):
        for tap in (edit, chain(zero("mlp", at()), chain(edit, Recorder()))):
            with pytest.raises(ValueError) as error:
                trace(model, IDS, 6, edit=tap)
            assert str(error.value).startswith(words) and "\n" not in str(error.value)
    check_edit(zero("mlp", at(step=99)), model.config, 100)


def test_a_pass_of_the_model_refuses_an_edit_that_would_change_nothing(model, seen):
    had = "the pass shows it at: prelude (layers 0 to 1, step 0), core (layers 0 to 1, steps 0 to 5), coda (layers 0 to 1, step 0)"
    for edit, words in (
        (zero("mlp", at(layer=99)), f"edit: mlp at layer 99 would change nothing; {had}"),
        (zero("mlp", at(step=[6, 7])), f"edit: mlp at step 6 or 7 would change nothing; {had}"),
        (swap("state", recorded(seen, "state"), 40, 41), "edit: state at stack core, step 40 or 41 would change nothing; "),
    ):
        for tap in (edit, chain(zero("mlp", at()), chain(edit, Recorder()))):
            for verb in (model, model.model):
                with pytest.raises(ValueError) as error:
                    verb(IDS, depth=6, tap=tap)
                assert str(error.value).startswith(words) and "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"logits at stack core would change nothing; the pass shows it at: coda \(layer 2, "):
        model(IDS, depth=6, tap=zero("logits", at(stack="core")))
    for tap in (zero("logits", at()), chain(zero("mlp", at()), zero("logits", at()))):
        with pytest.raises(ValueError, match="edit: logits at any place would change nothing; the pass shows it at: no place"):
            model.model(IDS, depth=6, tap=tap)  # has no head
    plain, tapped = model(IDS, depth=6).logits, model(IDS, depth=6, tap=zero("logits", at())).logits
    assert plain.any() and not tapped.any(), "a pass makes logits, where a trace makes none"
    assert torch.equal(model(IDS, depth=6, tap=lambda name, value, **_: value).logits, plain), (
        "of a tap of one's own nothing is known"
    )


@pytest.mark.long
@settings(max_examples=60)
@given(point=st.sampled_from(POINTS), stack=st.sampled_from([None, "prelude", "core", "coda"]), step=numbers, layer=numbers)
def test_a_pass_refuses_the_edits_that_it_would_not_make_and_no_other(model, point, stack, step, layer):
    made = []
    edit = change(point, at(stack=stack, step=step, layer=layer), lambda value, place: made.append(place) or value)
    model(IDS[:1, :2], depth=2, tap=lambda *a, **k: edit(*a, **k))
    if made:
        model(IDS[:1, :2], depth=2, tap=edit)
    else:
        with pytest.raises(ValueError, match=f"edit: {point} at "):
            model(IDS[:1, :2], depth=2, tap=edit)


@torch.no_grad()
def test_generating_takes_an_edit_and_refuses_one_without_a_place(model):
    long = {"max_new_tokens": 3, "do_sample": False, "depth": 3}
    edit = zero("mlp", at(stack="core", step=2))
    found = model.generate(IDS, tap=edit, **long)
    again = IDS
    for _ in range(3):  # the same tokens without a cache
        again = torch.cat([again, logits_of(model, again, edit)[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(found, again)
    with pytest.raises(ValueError, match="edit: mlp at step 3 would change nothing"):
        model.generate(IDS, tap=zero("mlp", at(step=3)), **long)


@torch.no_grad()
def logits_of(model, ids, tap):
    return model(ids, depth=3, tap=tap, use_cache=False).logits


def test_steps_and_layers_may_be_any_collection_read_once(model):
    for steps in (iter([0, 2]), {0, 2}, (0, 2), range(0, 3, 2), torch.tensor([0, 2])):
        edit = zero("mlp", at(step=steps))
        found = [logits(model, edit) for _ in range(2)]
        assert torch.equal(found[0], found[1]) and torch.equal(found[0], logits(model, zero("mlp", at(step=[0, 2]))))


@pytest.mark.parametrize("wrong", [-1, [0, -1], True, 1.5, "1", [], iter([])])
def test_a_step_or_layer_that_no_pass_has_is_refused(wrong):
    for name in ("step", "layer"):
        with pytest.raises(ValueError, match=f"edit: {name} .*; allowed: a whole number of at least 0, or one or more of them"):
            at(**{name: wrong})


def test_a_swap_takes_values_of_the_same_shape_and_points_of_the_core(model, seen):
    residuals = recorded(seen, "residual")
    with (
        torch.no_grad(),
        pytest.raises(ValueError, match=r"swap: a value of shape \(2, 7, 32\) for \('core', 2, 0\); allowed: \(1, "),
    ):
        model(IDS[:1], depth=3, tap=swap("residual", residuals, 0, 2))
    for name in ("embed", "logits"):
        with pytest.raises(
            ValueError, match=f"swap: point '{name}'; allowed: query, key, attention, mlp, residual, diagonal, gate"
        ):
            swap(name, residuals, 0, 1)
    with pytest.raises(ValueError, match=r"edit: step \(-1, 1\); allowed"):
        swap("residual", residuals, -1, 1)


def test_mistakes(model, seen):
    with pytest.raises(ValueError, match="unknown stack 'head'"):
        at(stack="head")
    with pytest.raises(ValueError, match="unknown point 'map'"):
        zero("map", at())
    with pytest.raises(ValueError, match=r"patch: no value for \('prelude', 0, 0\)"):
        logits(model, patch("mlp", at(), {}))
    with pytest.raises(ValueError, match="swap: nothing was recorded"):
        logits(model, swap("state", recorded(seen, "state"), 0, 7))
    short = {place: value[:, :2] for place, value in recorded(seen, "mlp").items()}
    with pytest.raises(ValueError, match="patch: a value of shape"):
        logits(model, patch("mlp", at(), short))
