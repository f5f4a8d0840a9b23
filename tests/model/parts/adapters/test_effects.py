"""Every adapter: no effect at the start where promised, gradients, dtypes, one step per row, effects that only add; its targets."""

import json

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import loopwright as lw
from loopwright.model.config import LoopedConfig
from loopwright.model.layers import Block
from loopwright.model.parts.adapters import ADAPTERS
from loopwright.model.parts.adapters.effects import (
    BRANCHES,
    Adapter,
    FactorTable,
    Site,
    StepFactors,
    chosen_shapes,
    low_rank,
    map_shapes,
    scale_of,
)
from loopwright.model.parts.part import StepIndex
from loopwright.model.passes import Adaptation, Effects, project
from tests.cases import gap

SPECS = {
    "sinusoidal": {"position": True},
    "low-rank": {"rank": 3, "alpha": 6.0, "bias": True},
    "hira": {"rank": 3, "alpha": 6.0},
    "abba": {"rank1": 2, "rank2": 3, "gamma": 0.5, "targets": "branches"},
    "diagonal": {"rank": 3},
    "controller": {"rank": 3, "style": 8, "pool_norm": "rms"},
    "basis-controller": {"rank": 3, "alpha": 1.0, "count": 2, "state": 12, "step": 6, "width": 10, "style": 8},
}
SILENT = [kind for kind in ADAPTERS if kind != "sinusoidal"]
PER_STEP = [kind for kind, adapter in ADAPTERS.items() if adapter.per_step]
IDS = torch.randint(0, 40, (3, 6), generator=torch.Generator().manual_seed(0))


def model_with(*kinds: str, beyond: str = "refuse", moved: bool = False, dtype: torch.dtype = torch.float32):
    torch.manual_seed(1)
    rows = {"max_steps": 4, "beyond_max_steps": beyond} if set(kinds) & set(PER_STEP) else {}
    model = lw.LoopedForCausalLM(
        lw.LoopedConfig(
            vocab_size=40,
            hidden_size=16,
            intermediate_size=24,
            num_attention_heads=4,
            num_key_value_heads=2,
            core_layers=2,
            depth=3,
            adapters=[{"kind": kind, **SPECS[kind]} for kind in kinds],
            **rows,
        )
    ).eval()
    if moved:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.to(dtype)


def test_every_adapter_has_its_case():
    assert set(SPECS) == set(ADAPTERS)


@torch.no_grad()
@pytest.mark.parametrize("kind", SILENT)
def test_no_effect_at_the_start(kind):
    adapted, plain = model_with(kind), model_with()
    plain.load_state_dict({k: v for k, v in adapted.state_dict().items() if not k.startswith("adapters.")}, strict=True)
    assert torch.equal(adapted(IDS).logits, plain(IDS).logits)
    for parameter in adapted.adapters.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.2)
    assert gap(adapted(IDS).logits, plain(IDS).logits) > 1e-3, "an adapter that was moved must have an effect"


@torch.no_grad()
def test_without_adapters_is_the_same_weights_without_them():
    adapted = model_with("low-rank", "abba", moved=True)
    plain = model_with()
    plain.load_state_dict({k: v for k, v in adapted.state_dict().items() if not k.startswith("adapters.")})
    assert torch.equal(adapted.without_adapters()(IDS).logits, plain(IDS, depth=1).logits)


@pytest.mark.parametrize("kind", ADAPTERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shape_dtype_and_gradient(kind, dtype):
    model = model_with(kind, moved=True, dtype=dtype)
    out = model(IDS, labels=IDS, depth=4 if kind in PER_STEP else 3)
    assert out.logits.shape == (3, 6, 40) and out.logits.dtype == dtype
    out.loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.abs().sum() > 0, name
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert bool(frozen) == (kind in ("diagonal", "controller"))
    assert all(".bases." in name for name in frozen)


@pytest.mark.parametrize("kind", PER_STEP)
def test_every_step_has_a_row_of_its_own(kind):
    """At depth 2 the tables' later rows take no gradient; at depth 4 every row does."""
    for depth in (2, 4):
        model = model_with(kind, moved=True)
        model(IDS, labels=IDS, depth=depth).loss.backward()
        tables = [p for _, p in model.adapters.named_parameters() if p.requires_grad and p.shape[0] == 4 and p.dim() > 1]
        assert tables
        for table in tables:
            used = table.grad.flatten(1).abs().sum(1) > 0
            assert used.tolist() == [t < depth for t in range(4)]


@torch.no_grad()
@pytest.mark.parametrize("kind", ADAPTERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_step_per_row_is_each_row_alone(kind, dtype):
    model = model_with(kind, moved=True, dtype=dtype)
    e, p = model.embed(IDS)
    s = torch.randn(e.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    t = torch.tensor([3, 0, 2])
    mixed = model.step(s, e, t, p)
    for row, step in enumerate(t.tolist()):
        one = slice(row, row + 1)
        alone = model.step(s[one], e[one], step, model.embed(IDS[one])[1])
        assert gap(mixed[one].float(), alone.float()) < (1e-5 if dtype == torch.float32 else 0.1)
    if dtype == torch.float32:
        assert gap(mixed[:1], model.step(s, e, 0, p)[:1]) > 1e-4, "steps must differ, or this test could not fail"


@torch.no_grad()
@pytest.mark.parametrize("kind", PER_STEP)
def test_beyond_max_steps_refuse_or_repeat(kind):
    model = model_with(kind, moved=True)
    with pytest.raises(ValueError, match=rf"depth: 5 is beyond max_steps=4; adapters \({kind}\) have no parameters for later"):
        model(IDS, depth=5)
    model = model_with(kind, beyond="repeat", moved=True)
    e, p = model.embed(IDS)
    assert torch.equal(model.step(e, e, 3, p), model.step(e, e, 9, p))
    assert model(IDS, depth=6).logits.isfinite().all()


@torch.no_grad()
def test_adapters_add_up():
    """Two adapters stand together: the list is a sum, so its order does not matter."""
    one, other = (
        model_with(*kinds, moved=True, dtype=torch.float64) for kinds in (("low-rank", "controller"), ("controller", "low-rank"))
    )
    swap = {"adapters.0.": "adapters.1.", "adapters.1.": "adapters.0."}
    other.load_state_dict({swap.get(k[:11], k[:11]) + k[11:]: v for k, v in one.state_dict().items()})
    assert gap(one(IDS).logits, other(IDS).logits) < 1e-9


@torch.no_grad()
def test_a_forward_sets_nothing_on_modules():
    model = model_with(*ADAPTERS, moved=True)
    before = {name: {k: id(v) for k, v in vars(module).items()} for name, module in model.named_modules()}
    model(IDS)
    assert before == {name: {k: id(v) for k, v in vars(module).items()} for name, module in model.named_modules()}


@pytest.mark.parametrize("kind", ADAPTERS)
def test_config_round_trip(kind):
    config = model_with(kind).config
    again = lw.LoopedConfig(**json.loads(json.dumps(config.to_dict())))
    assert again.adapters == [{"kind": kind, **SPECS[kind]}]
    assert again.to_dict() == config.to_dict()
    assert again.step_tables == ([f"adapters ({kind})"] if ADAPTERS[kind].per_step else [])


def test_adaptation_sums_effects_and_skips_what_is_none():
    x, y = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    double = Effects(
        signal=torch.ones(4),
        update=lambda layer, name, a, weight: a * (layer + 1) if name == "q_proj" else None,
    )
    adapt = Adaptation([double, Effects(), double])
    assert torch.equal(adapt.shift(x), x + 1 + 1)
    assert torch.equal(adapt.add(1, "q_proj", x, y), y + 2 * x + 2 * x)
    assert adapt.add(1, "k_proj", x, y) is y
    silent = Adaptation([Effects()])
    assert silent.shift(x) is x and silent.add(0, "q_proj", x, y) is y


def test_project_shows_the_weight_to_the_update():
    linear, x, shown = nn.Linear(4, 4), torch.randn(1, 2, 4), []
    adapt = Adaptation([Effects(update=lambda layer, name, a, weight: shown.append((layer, name, a, weight)))])
    assert torch.equal(project({"v_proj": linear}, x, 3, None)[0], linear(x))
    assert torch.equal(project({"v_proj": linear}, x, 3, adapt)[0], linear(x))
    assert len(shown) == 1 and shown[0][:2] == (3, "v_proj") and shown[0][2] is x and shown[0][3] is linear.weight


def test_the_abstract_adapter_begins_nothing():
    with pytest.raises(NotImplementedError):
        Adapter().begin(None, None, None)


class Largest(TorchDispatchMode):
    """Remembers how many bytes the largest tensor has that is made while it is on."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        known = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in known:
                self.bytes = max(self.bytes, tensor.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("kind", [kind for kind in ADAPTERS if kind != "hira"])  # its product with W has no smaller form
def test_no_update_is_formed_as_a_whole_matrix(kind):
    """A frozen model with few tokens: nothing that a step makes, forward or backward, is as large as a weight."""
    torch.manual_seed(0)
    options = {name: value for name, value in SPECS[kind].items() if name != "targets"}
    config = lw.LoopedConfig(
        vocab_size=40, hidden_size=64, intermediate_size=96, core_layers=1, depth=1, max_steps=1 if kind in PER_STEP else None,
        adapters=[{"kind": kind, **options}],
    )  # fmt: skip
    model = lw.LoopedForCausalLM(config).requires_grad_(False)
    for name, parameter in model.adapters.named_parameters():
        parameter.requires_grad_(".bases." not in name)
    e, p = model.embed(IDS[:1, :4])
    with Largest() as largest:
        y = model.step(e, e, 0, p)
        if y.requires_grad:
            y.sum().backward()
    assert 0 < largest.bytes < 64 * 64 * 4


# adapters on the stacks that run once


def stacked(*kinds: str, stack: str, moved: bool = True, **changes):
    torch.manual_seed(1)
    config = {
        "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2,
        "prelude_layers": 2, "core_layers": 1, "coda_layers": 3, "depth": 2,
    }  # fmt: skip
    adapters = [{"kind": kind, **SPECS[kind], "stack": stack} for kind in kinds]
    model = lw.LoopedForCausalLM(lw.LoopedConfig(**{**config, "adapters": adapters, **changes})).eval()
    if moved:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


DENSE = {"prelude_layers": 3, "core_layers": 0, "coda_layers": 0, "depth": 1}


@pytest.mark.parametrize("kind", SILENT)
@pytest.mark.parametrize(("stack", "changes"), [("prelude", {}), ("coda", {}), ("prelude", DENSE)], ids=str)
def test_an_adapter_on_a_stack_that_runs_once(kind, stack, changes):
    """No effect at the start, one row, every parameter trained, max_steps not asked for."""
    model, plain = stacked(kind, stack=stack, moved=False, **changes), stacked(stack=stack, moved=False, **changes)
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("adapters.")})
    assert torch.equal(model(IDS).logits, plain(IDS).logits)
    model = stacked(kind, stack=stack, **changes)
    out = model(IDS, labels=IDS)
    out.loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("adapters.")})
    assert gap(out.logits, plain(IDS).logits) > 1e-3
    assert model.config.step_tables == [] and model.config.max_steps is None


@torch.no_grad()
@pytest.mark.parametrize("stack", ["prelude", "coda"])
def test_low_rank_on_a_stack_is_its_changed_weights(stack):
    model, plain = stacked("low-rank", stack=stack), stacked(stack=stack)
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("adapters.")})
    factors = model.adapters[0].factors
    for shift in model.adapters[0].biases.values():
        shift.zero_()
    for layer, block in enumerate(getattr(plain, stack)):
        for path, linear in block.named_modules():
            if isinstance(linear, nn.Linear):
                name = path.split(".")[-1]
                linear.weight += 2.0 * factors.b[name][0, layer] @ factors.a[name][0, layer]
    assert gap(model(IDS).logits, plain(IDS).logits) < 1e-4


@torch.no_grad()
@pytest.mark.parametrize(("stack", "changes"), [("prelude", {}), ("coda", {}), ("prelude", DENSE)], ids=str)
def test_cached_equals_uncached_and_saved_equals_loaded_on_a_stack(stack, changes, tmp_path):
    model = stacked("low-rank", "controller", "abba", stack=stack, **changes)
    whole = model(IDS).logits
    cache = model(IDS[:, :4], use_cache=True).past_key_values
    assert gap(model(IDS[:, 4:], past_key_values=cache).logits, whole[:, 4:]) < 1e-5
    greedy = model.generate(IDS, max_new_tokens=3, do_sample=False)
    assert torch.equal(greedy[:, 6], whole[:, -1].argmax(-1))
    lw.save(model, tmp_path / "whole")
    assert torch.equal(lw.load(tmp_path / "whole")(IDS).logits, whole)
    plain = stacked(stack=stack, **changes)
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("adapters.")})
    lw.save_adapters(model, tmp_path / "parts")
    assert torch.equal(lw.load_adapters(plain, tmp_path / "parts")(IDS).logits, whole)


@torch.no_grad()
def test_a_stack_reads_out_every_step_with_its_adapters():
    model = stacked("low-rank", "controller", stack="coda")
    out = model(IDS, depth=2, output_steps=True, use_cache=True)
    assert gap(out.step_logits[0], model(IDS, depth=1).logits) < 1e-5


def test_a_stack_is_checked():
    with pytest.raises(ValueError, match=r"adapters\[0\] \(low-rank\): stack is 'tail'; allowed: prelude, core, coda"):
        stacked("low-rank", stack="tail")
    with pytest.raises(ValueError, match=r"adapters\[0\] \(low-rank\): the coda has no layers; allowed: a stack that has some"):
        stacked("low-rank", stack="coda", coda_layers=0)
    with pytest.raises(ValueError, match=r"a model without a core \(core_layers 0\) has no steps, and the core has adapters"):
        stacked("low-rank", stack="core", **DENSE, max_steps=2)
    with pytest.raises(ValueError, match="max_steps is 3, but nothing here holds one row per step"):
        stacked("low-rank", stack="coda", max_steps=3)
    explicit = stacked("sinusoidal", stack="core").config
    assert explicit.adapters == [{"kind": "sinusoidal", "position": True}]


CONFIG = LoopedConfig(
    hidden_size=12, intermediate_size=20, num_attention_heads=4, num_key_value_heads=2, head_dim=6, core_layers=3, max_steps=5,
    end_norm="per-step",
)  # fmt: skip
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.mark.parametrize("mlp", ["swiglu", "relu"])
def test_shapes_are_those_of_the_block(mlp):
    config = LoopedConfig(**{**CONFIG.to_dict(), "mlp": mlp})
    block = Block(config)
    linears = {**dict(block.self_attn.named_children()), **dict(block.mlp.named_children())}
    expected = {name: tuple(linear.weight.shape) for name, linear in linears.items()}
    shapes = map_shapes(config)
    assert {name: shape for name, shape in shapes.items() if name not in BRANCHES} == expected
    assert all(shapes[branch] == (12, 12) for branch in BRANCHES)


def test_choosing_targets():
    assert list(chosen_shapes(Site(CONFIG), "linears")) == LINEARS
    assert list(chosen_shapes(Site(CONFIG), "branches")) == ["attention", "mlp"]
    assert list(chosen_shapes(Site(CONFIG), "v_proj")) == ["v_proj"]
    # the order is the block's, not the caller's, so that saved tables mean the same whatever the list
    assert list(chosen_shapes(Site(CONFIG), ["mlp", "q_proj"]).items()) == [("q_proj", (24, 12)), ("mlp", (12, 12))]


@pytest.mark.parametrize(
    ("targets", "branches", "message"),
    [
        (["q_prj"], True, "adapter targets: unknown 'q_prj'; did you mean 'q_proj'? allowed: attention, down_proj"),
        ("linear", True, "adapter targets: unknown 'linear'; allowed: attention, down_proj"),
        (["mlp"], False, "adapter targets: unknown 'mlp'; allowed: down_proj"),
        ("branches", False, "adapter targets: unknown 'attention', 'mlp'; "),
        ([], True, "adapter targets: none given; allowed: 'linears', 'branches' or a list of names"),
    ],
)
def test_wrong_targets(targets, branches, message):
    with pytest.raises(ValueError) as caught:
        chosen_shapes(Site(CONFIG), targets, branches=branches)
    assert str(caught.value).startswith(message)


def test_a_gate_projection_is_no_target_where_there_is_none():
    with pytest.raises(ValueError, match="unknown 'gate_proj'"):
        chosen_shapes(Site(LoopedConfig(mlp="gelu")), ["gate_proj"])


def test_factor_table():
    torch.manual_seed(0)
    shapes = {"q_proj": (24, 12), "down_proj": (12, 20)}
    a, b = FactorTable(shapes, (5, 3), 2, "a"), FactorTable(shapes, (5, 3), 2, "b", zero=True)
    a.start(), b.start()
    assert {name: tuple(t.shape) for name, t in a.items()} == {"q_proj": (5, 3, 2, 12), "down_proj": (5, 3, 2, 20)}
    assert {name: tuple(t.shape) for name, t in b.items()} == {"q_proj": (5, 3, 24, 2), "down_proj": (5, 3, 12, 2)}
    assert all(t.abs().max() == 0 for t in b.values())
    assert abs(a["down_proj"].std().item() - 20**-0.5) < 0.03
    with pytest.raises(ValueError, match=r"adapter: rank must be a whole number >= 1 \(got 0\)"):
        FactorTable(shapes, (5,), 0, "a")


def test_step_factors_by_step_and_by_row():
    torch.manual_seed(0)
    factors = StepFactors(Site(CONFIG), {"k_proj": (12, 12)}, 2, zero=False)
    factors.a.start(), factors.b.start()
    b, a = factors.at("k_proj", 1, StepIndex(3, 3))
    assert torch.equal(b, factors.b["k_proj"][3, 1]) and torch.equal(a, factors.a["k_proj"][3, 1])
    t = torch.tensor([4, 0])
    b, a = factors.at("k_proj", 2, StepIndex(t, t))
    assert torch.equal(b, factors.b["k_proj"][t, 2]) and torch.equal(a, factors.a["k_proj"][t, 2])


def test_low_rank_is_the_dense_product():
    generator = torch.Generator().manual_seed(0)
    x, b, a = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3, 5, 8), (3, 6, 2), (3, 2, 8)))
    shared = low_rank(x, b[0], a[0])
    assert gap(shared, torch.einsum("or,ri,bti->bto", b[0], a[0], x)) < 1e-12
    assert gap(low_rank(x, b, a), torch.einsum("bor,bri,bti->bto", b, a, x)) < 1e-12


@pytest.mark.parametrize("alpha", [0, 0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ["low-rank", "diagonal", "controller", "basis-controller"])
def test_a_factor_under_which_nothing_acts_is_refused(kind: str, alpha: float) -> None:
    with pytest.raises(ValueError, match=rf"adapter: alpha {alpha}; allowed: a number above 0"):
        ADAPTERS[kind](Site(CONFIG), rank=2, alpha=alpha)


def test_the_factor_is_alpha_over_rank_and_1_without_one() -> None:
    assert (scale_of(16.0, 32), scale_of(None, 8), scale_of(3, 2)) == (0.5, 1.0, 1.5)
