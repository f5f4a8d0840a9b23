"""LoopedConfig: one looped transformer as plain data, with every check in one place, before anything is built from it.

A model is three stacks of one kind of block (prelude, core, coda), of which the core runs `depth` times, and five parts
that say how: state, injection, adapters, gate, halting. Each part is `{"kind": …, options}`.

The bounds of its numbers lie far above what anybody runs. They keep a hostile or mistyped config.json from hanging the process or
filling memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig, PreTrainedConfig

from loopwright.model.layers import NORMS
from loopwright.model.parts.adapters import ADAPTERS, check_adapter, stack_of
from loopwright.model.parts.adapters.effects import BRANCHES, Site, map_shapes
from loopwright.model.parts.gate import GATES
from loopwright.model.parts.halting import HALTINGS, READ_OUTS
from loopwright.model.parts.init import INITS
from loopwright.model.parts.injection import INJECTIONS
from loopwright.model.parts.part import Part
from loopwright.model.parts.state import STATES
from loopwright.model.quantised import wrong_quantisation
from loopwright.schema import (
    CUSTOM_PART_HINT,
    MOST_NUMBER,
    Kinds,
    check_form,
    check_kind,
    is_number,
    is_whole,
    options_of,
    refuse_unknown,
)
from loopwright.untrusted import shown

LEAST_NUMBER: float = torch.finfo(torch.float32).tiny
MOST_DEPTH = 1_000_000
MOST_LAYERS = 1024  # of the three stacks together
MOST_ADAPTERS = 64
MOST_PARAMETERS = 2**43
MOST_ENTRIES = 2**50  # of an adapter's tables, from above
MOST_LABELS = 2**16
MOST: dict[str, int] = {
    "vocab_size": 2**26, "hidden_size": 2**20, "intermediate_size": 2**22, "num_attention_heads": 2**14,
    "num_key_value_heads": 2**14,
    "head_dim": 2**14, "max_position_embeddings": 2**31, "prelude_layers": MOST_LAYERS, "core_layers": MOST_LAYERS,
    "coda_layers": MOST_LAYERS, "depth": MOST_DEPTH, "max_steps": 2**16, "sliding_window": 2**31,
}  # fmt: skip
_SIZED = {"injection": INJECTIONS, "gate": GATES}  # the parts whose size grows with the square of the width
LARGEST_OPTION = 2**20  # of an adapter: every whole number there is a size


def wrong_options(
    where: str, spec: Mapping[str, Any], ranges: Mapping[str, tuple[float, float, bool]], *, sizes: bool = False
) -> Iterator[str]:
    """Yields what is out of the ranges of a checked kind; an option that is null is left to its kind.

    `sizes`: a whole number that has no range is a size.
    """
    for name, value in spec.items():
        if sizes and is_whole(value) and name not in ranges:
            if not 1 <= value <= LARGEST_OPTION:
                yield f"{where} ({spec['kind']}): {name} is {shown(value)}; allowed: a whole number from 1 to {LARGEST_OPTION}"
        elif name in ranges and value is not None:
            low, high, included = ranges[name]
            if not is_number(value, low, high) or (value == low and not included):
                most = "a number of float32" if high == MOST_NUMBER else f"at most {high:g}"
                least = f"{'from' if included else 'above'} {low:g}, " if low > -MOST_NUMBER else ""
                yield f"{where} ({spec['kind']}): {name} is {shown(value)}; allowed: {least}{most}"


def too_large(config: LoopedConfig) -> Iterator[str]:
    """Yields what makes a model too large to build, from its sizes alone."""
    layers = config.prelude_layers + config.core_layers + config.coda_layers
    if layers > MOST_LAYERS:
        yield f"prelude_layers, core_layers and coda_layers are {layers:,} together; allowed: at most {MOST_LAYERS:,}"
        return
    total = plain_parameters(config)
    if total > MOST_PARAMETERS:
        yield f"its sizes make {total:,} parameters; allowed: at most {MOST_PARAMETERS:,}"
    for place, spec in enumerate(config.adapters):
        entries = _adapter_entries(config, spec)
        if entries > MOST_ENTRIES:
            yield f"adapters[{place}] ({spec['kind']}): its sizes make up to {entries:,} numbers; allowed: at most {MOST_ENTRIES:,}"


def plain_parameters(config: LoopedConfig) -> int:
    """Returns how many parameters a model has at least: its linear maps, embeddings and per-step projections, without adapters."""
    width = config.hidden_size
    layers = config.prelude_layers + config.core_layers + config.coda_layers
    block = sum(out * inner for name, (out, inner) in map_shapes(config).items() if name not in BRANCHES)
    tables = config.vocab_size * (1 if config.tie_word_embeddings else 2)
    tables += config.max_position_embeddings if config.positions == "learned" else 0
    parts = sum(table[getattr(config, name)["kind"]].least_parameters(config) for name, table in _SIZED.items())
    return layers * block + tables * width + parts


def _adapter_entries(config: LoopedConfig, spec: Mapping[str, Any]) -> int:
    """Returns a number that no table of an adapter exceeds: rows × layers × the widest side × its two largest sizes."""
    site = Site(config, stack_of(spec))
    options = {name: spec.get(name, parameter.default) for name, parameter in options_of(ADAPTERS[spec["kind"]]).items()}
    sizes = sorted((v for v in options.values() if is_whole(v)), reverse=True)[:2]
    widest = max(side for shape in map_shapes(config).values() for side in shape)
    return max(site.rows, 1) * site.layers * widest * math.prod(sizes)


CHOICES: dict[str, tuple[str, ...]] = {
    "positions": ("rotary", "learned", "none"),
    "rope_layout": ("half", "interleaved"),
    "qk_norm": ("none", "head", "full"),
    "mlp": ("swiglu", "gelu", "gelu_tanh", "relu"),
    "end_norm": ("never", "last", "every", "per-step"),
    "layer_post_norm": ("none", "shared", "per-step", "per-layer-and-step"),
    "beyond_max_steps": ("refuse", "repeat"),
    "read_out": READ_OUTS["logits"],
}
PER_STEP = ("per-step", "per-layer-and-step")  # the choices that hold one row of weights for each step
# rope type → what it needs and what it may have, beside rope_type and rope_theta
ROPE_TYPES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), ()),
    "yarn": (
        ("factor", "original_max_position_embeddings"),
        ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
}
PARTS: dict[str, Kinds] = {"state": STATES, "injection": INJECTIONS, "gate": GATES, "halting": HALTINGS}
PLAIN = {"state": "input", "injection": "none", "gate": "none", "halting": "none"}  # the kinds of a model without parts

# the form of each value: whole numbers with their least, numbers, mappings, lists
_WHOLE = {
    "vocab_size": 1, "hidden_size": 1, "intermediate_size": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 1,
    "max_position_embeddings": 1, "prelude_layers": 0, "core_layers": 0, "coda_layers": 0, "depth": 1, "max_steps": 1,
    "sliding_window": 1,
}  # fmt: skip
_MAY_BE_NONE = ("num_key_value_heads", "head_dim", "max_steps", "sliding_window")
# a fresh model of larger numbers than the last overflows
_NUMBERS = {"dropout": (0.0, MOST_NUMBER), "embedding_scale": (LEAST_NUMBER, MOST_NUMBER), "initializer_range": (0.0, 10_000.0)}
_FLAGS = ("mlp_bias", "embedding_norm", "head_bias", "tie_word_embeddings", "use_cache")
_MAPPINGS = ("norm", "final_norm", "rope_parameters", "init", *PARTS)
_LISTS = ("attention_bias", "norm_placement", "adapters")
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
_OF_STEPS = ("state", "injection", "gate")  # parts that a model without steps cannot have
# what transformers keeps in a config beside our fields: it reads some of it without a look
_KEPT = {
    "transformers_version": "str | None", "architectures": "list[str] | None", "output_hidden_states": "bool | None",
    "return_dict": "bool | None", "chunk_size_feed_forward": "int", "is_encoder_decoder": "bool",
    "id2label": "dict | None", "label2id": "dict | None", "problem_type": "str | None", "num_labels": "int",
    "auto_map": "dict | None", "per_layer_config": "dict | None", "output_attentions": "bool | None",
}  # fmt: skip
# any other name would have transformers load code of that name, from the hub even
_IMPLEMENTATIONS = {"attn_implementation": ("eager", "sdpa"), "experts_implementation": ("eager", "grouped_mm", "batched_mm")}
_PROBLEMS = ("regression", "single_label_classification", "multi_label_classification")
_DTYPES = ("float32", "bfloat16", "float16", "float64")

# what transformers itself puts into a config.json or passes along, beside the fields
_ADMITTED = {
    "model_type", "torch_dtype", "name_or_path", "_name_or_path", "_commit_hash", "attn_implementation", "output_attentions",
    "experts_implementation", "_attn_implementation_internal", "_experts_implementation_internal", "auto_map",
    "num_labels", "per_layer_config", "quantization_config",
}  # fmt: skip

if TYPE_CHECKING:  # what is left out is filled in when a config is made: whoever reads one finds a value
    _Whole = int
    _Mapping = dict[str, Any]
    _List = list[Any]
else:
    _Whole, _Mapping, _List = int | None, dict | None, list | None
_FILLED_IN: Any = None


class LoopedConfig(PreTrainedConfig):
    """The whole model as data. See the module's docstring; defaults give a small Llama-like block looped four times."""

    model_type = "loopwright"
    # what Trainer does not gather: a metric is handed the logits alone
    keys_to_ignore_at_inference = ["past_key_values", "last_hidden_state", "exit_probs"]  # noqa: RUF012

    vocab_size: int = 512
    hidden_size: int = 64
    intermediate_size: int = 128
    num_attention_heads: int = 4
    num_key_value_heads: _Whole = _FILLED_IN
    head_dim: _Whole = _FILLED_IN
    max_position_embeddings: int = 2048

    prelude_layers: int = 0
    core_layers: int = 1
    coda_layers: int = 0
    depth: int = 4
    max_steps: int | None = None
    beyond_max_steps: str = "refuse"

    positions: str = "rotary"
    rope_parameters: _Mapping = _FILLED_IN
    rope_layout: str = "half"
    sliding_window: int | None = None
    attention_bias: _List = _FILLED_IN
    qk_norm: str = "none"
    mlp: str = "swiglu"
    mlp_bias: bool = False
    norm: _Mapping = _FILLED_IN
    norm_placement: _List = _FILLED_IN
    end_norm: str = "never"
    layer_post_norm: str = "none"
    final_norm: _Mapping = _FILLED_IN
    embedding_scale: float = 1.0
    embedding_norm: bool = False
    head_bias: bool = False
    tie_word_embeddings: bool = True
    dropout: float = 0.0
    initializer_range: float = 0.02
    init: _Mapping = _FILLED_IN

    state: _Mapping = _FILLED_IN
    injection: _Mapping = _FILLED_IN
    adapters: _List = _FILLED_IN
    gate: _Mapping = _FILLED_IN
    halting: _Mapping = _FILLED_IN
    read_out: str = "last"  # the `select` of a pass that names none; configs from before the field answer by the last step

    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets a field. The form of transformers' own is looked at first: not every version does so, nor in one line."""
        if name in _KEPT:
            _refuse("model config", _wrong_kept({name: value}))
        super().__setattr__(name, value)

    def __post_init__(self, **kwargs: Any) -> None:
        generation = GenerationConfig._get_default_generation_params()
        known = set(type(self).__dataclass_fields__) | _ADMITTED | set(generation)
        # the message lists the fields of a looped model, not the hundred names transformers passes along
        refuse_unknown("model config", [name for name in kwargs if name not in known], LoopedConfig.__annotations__)
        _refuse("model config", self._malformed())
        _refuse("model config", _wrong_kept({**vars(self), **kwargs}))
        _refuse("model config", wrong_quantisation(kwargs.get("quantization_config")))
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None:
            self.head_dim = self.hidden_size // max(self.num_attention_heads, 1)
        self.attention_bias = list(self.attention_bias or [])
        self.norm = {"kind": "rms", "eps": 1e-6, **(self.norm or {})}
        # None means "the same norm as everywhere else"; {"kind": "none"} means that the head reads the state as it is
        self.final_norm = dict(self.norm) if self.final_norm is None else dict(self.final_norm)
        self.norm_placement = list(["input"] if self.norm_placement is None else self.norm_placement)
        for name, kind in PLAIN.items():
            setattr(self, name, dict(getattr(self, name) or {"kind": kind}))
        self.adapters = [{k: v for k, v in a.items() if (k, v) != ("stack", "core")} for a in (self.adapters or [])]
        self.init = dict(self.init or {"kind": "normal"})
        self.rope_parameters = dict(self.rope_parameters or {"rope_type": "default", "rope_theta": 10_000.0})
        super().__post_init__(**kwargs)
        _refuse("model config", self._problems())

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any], **kwargs: Any) -> Any:
        """Returns the config of a config.json. A null there means what a field that is left out means."""
        return super().from_dict({name: value for name, value in config_dict.items() if value is not None}, **kwargs)

    @property
    def num_hidden_layers(self) -> int:
        """The number of cache slots at the default depth: what transformers means by layers."""
        return self.prelude_layers + self.coda_layers + self.core_layers * self.depth

    @property
    def is_looped(self) -> bool:
        """Whether there is a core to loop; a dense model has none."""
        return self.core_layers > 0

    @property
    def step_tables(self) -> list[str]:
        """The fields that hold one row of parameters per step."""
        tables = [name for name in ("end_norm", "layer_post_norm") if getattr(self, name) in PER_STEP]
        tables += [name for name, table in PARTS.items() if table[getattr(self, name)["kind"]].per_step]
        return tables + [f"adapters ({a['kind']})" for a in self._core_adapters if ADAPTERS[a["kind"]].per_step]

    @property
    def _core_adapters(self) -> list[dict]:
        return [a for a in self.adapters if stack_of(a) == "core"]

    @property
    def _parts(self) -> list[tuple[type[Part], dict]]:
        """Each part with its options, the adapters last."""
        parts = [(table[getattr(self, name)["kind"]], getattr(self, name)) for name, table in PARTS.items()]
        return parts + [(ADAPTERS[spec["kind"]], spec) for spec in self.adapters]

    @property
    def draws(self) -> bool:
        """Whether a pass draws random numbers while it trains: dropout of the blocks, or a part that says so."""
        return self.dropout > 0 or any(kind.draws or spec.get("dropout", 0) > 0 for kind, spec in self._parts)

    def check_depth(self, depth: int | None) -> int:
        """Returns the depth of a pass, the default one where none is given; raises where it cannot be run."""
        if depth is None:
            return self.depth if self.is_looped else 1
        if not self.is_looped:
            raise ValueError(f"depth: {depth} was asked of a dense model; it has no core to loop, so leave depth out")
        if not is_whole(depth, 1, MOST_DEPTH):
            most = f", at most {MOST_DEPTH:,}" if is_whole(depth, 1, 2**63) else ""
            raise ValueError(f"depth: {shown(depth)}; allowed: a whole number of at least 1{most}")
        if self.max_steps is not None and self.beyond_max_steps == "refuse" and depth > self.max_steps:
            raise ValueError(
                f"depth: {depth} is beyond max_steps={self.max_steps}; {', '.join(self.step_tables)} have no parameters for "
                "later steps"
            )
        return depth

    def _malformed(self) -> Iterator[str]:
        """Yields what must be right before the other checks can ask anything: the form of each value."""
        for name, least in _WHOLE.items():
            value = getattr(self, name)
            if (value is not None or name not in _MAY_BE_NONE) and not is_whole(value, least, MOST[name]):
                most = f" and at most {MOST[name]:,}" if isinstance(value, int) and value > MOST[name] else ""
                yield f"{name} is {shown(value)}; allowed: a whole number of at least {least}{most}"
        for name, (low, high) in _NUMBERS.items():
            value = getattr(self, name)
            if not is_number(value, low, high):
                end = "that float32 can hold" if high == MOST_NUMBER else f"to {high:,.0f}"
                yield f"{name} is {shown(value)}; allowed: a number {'above' if low else 'from'} 0 {end}"
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                yield f"{name} is {shown(getattr(self, name))}; allowed: true, false"
        for name in _MAPPINGS:
            if not isinstance(getattr(self, name), Mapping | None):
                yield f"{name} is {shown(getattr(self, name))}; allowed: a mapping of names to values"
        for name in _LISTS:
            if not isinstance(getattr(self, name), list | tuple | None):
                yield f"{name} is {shown(getattr(self, name))}; allowed: a list"
        for name in _TOKENS:
            value = getattr(self, name)
            several = value if isinstance(value, list | tuple) and name == "eos_token_id" else [value]
            if not all(one is None or is_whole(one, 0, MOST["vocab_size"]) for one in several) or several == []:
                yield f"{name} is {shown(value)}; allowed: a token id (a whole number from 0) or null"
        if isinstance(self.adapters, list | tuple):
            if len(self.adapters) > MOST_ADAPTERS:
                yield f"adapters has {len(self.adapters):,} entries; allowed: at most {MOST_ADAPTERS}"
            wrong = [(i, a) for i, a in enumerate(self.adapters) if not isinstance(a, Mapping)]
            yield from (f"adapters[{i}] is {shown(a)}; allowed: a mapping with a 'kind'" for i, a in wrong[:MOST_ADAPTERS])

    def _problems(self) -> Iterator[str]:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                yield f"{name} is {shown(getattr(self, name))}; allowed: {', '.join(allowed)}"
        if not self.prelude_layers + self.core_layers + self.coda_layers:
            yield "prelude_layers, core_layers and coda_layers are 0; allowed: at least one layer in all"
        if self.head_dim < 1:
            sizes = f"{self.hidden_size} / {self.num_attention_heads}"
            yield f"head_dim is {self.head_dim} (by default hidden_size / num_attention_heads, {sizes}); allowed: at least 1"
        if self.num_attention_heads % self.num_key_value_heads:
            heads = (self.num_attention_heads, self.num_key_value_heads)
            yield f"heads and key/value heads are {heads}; the first must be a multiple of the second"
        if self.positions == "rotary" and self.head_dim % 2:
            yield f"head_dim ({self.head_dim}) must be even for rotary positions"
        if self.positions == "rotary":
            yield from _wrong_rope(self.rope_parameters)
        if self.dropout >= 1:
            yield f"dropout is {self.dropout}; allowed: at least 0, below 1"
        yield from _wrong_members("attention_bias", self.attention_bias, ("q", "k", "v", "o"))
        yield from _wrong_members("norm_placement", self.norm_placement, ("input", "output", "residual"))
        yield from _wrong_norm("norm", self.norm)
        yield from _wrong_norm("final_norm", self.final_norm, "none")
        if self.end_norm == "last" and self.final_norm.get("kind") == "none":
            yield "end_norm 'last' applies the final norm after the loop; final_norm must not be none"
        yield from self._part_problems()

    def _part_problems(self) -> Iterator[str]:
        checks: list[Callable[[], None]] = [partial(check_kind, n, getattr(self, n), table) for n, table in PARTS.items()]
        checks += [partial(check_adapter, f"adapters[{i}]", spec) for i, spec in enumerate(self.adapters)]
        checks += [partial(check_kind, "init", self.init, INITS)]
        sound = True
        for check in checks:
            try:
                check()
            except ValueError as error:
                sound = False
                yield str(error)
        if not sound:
            return
        for name, table in PARTS.items():
            spec = getattr(self, name)
            yield from wrong_options(name, spec, table[spec["kind"]].ranges)
        for place, spec in enumerate(self.adapters):
            yield from wrong_options(f"adapters[{place}]", spec, ADAPTERS[spec["kind"]].ranges, sizes=True)
        if self.initializer_range != type(self).initializer_range and not INITS[self.init["kind"]].reads_range:
            given = f"initializer_range is {self.initializer_range}, and init {self.init['kind']!r} does not read it"
            yield f"{given}; allowed: with {', '.join(name for name, kind in INITS.items() if kind.reads_range)}"
        halting = self.halting["kind"]
        if self.read_out not in (fitting := READ_OUTS[HALTINGS[halting].mixes]):
            yield f"read_out is {shown(self.read_out)}, and halting is {halting!r}; allowed with it: {', '.join(fitting)}"
        yield from too_large(self)
        if not self.is_looped:
            kinds = {name: (getattr(self, name)["kind"], PLAIN[name]) for name in _OF_STEPS}
            kinds |= {"end_norm": (self.end_norm, "never"), "layer_post_norm": (self.layer_post_norm, "none")}
            wrong = [f"{name} is {got!r}, not {wanted!r}" for name, (got, wanted) in kinds.items() if got != wanted]
            wrong += ["the core has adapters"] * bool(self._core_adapters)
            if wrong:
                yield f"a model without a core (core_layers 0) has no steps, and {', '.join(wrong)}"
        for i, spec in enumerate(self.adapters):
            if stack_of(spec) != "core" and not getattr(self, f"{stack_of(spec)}_layers"):
                yield f"adapters[{i}] ({spec['kind']}): the {stack_of(spec)} has no layers; allowed: a stack that has some"
        if self.step_tables and self.max_steps is None:
            yield f"max_steps is missing; needed by parts with one row of parameters per step: {', '.join(self.step_tables)}"
        if self.max_steps is not None and not self.step_tables:
            yield f"max_steps is {self.max_steps}, but nothing here holds one row per step"
        if self.max_steps is not None and self.beyond_max_steps == "refuse" and self.depth > self.max_steps:
            yield f"depth ({self.depth}) is beyond max_steps ({self.max_steps})"


def _refuse(where: str, problems: Iterator[str]) -> None:
    listed = list(problems)
    if listed:
        raise ValueError(f"{where}: " + "; ".join(listed))


def _wrong_members(name: str, values: list, allowed: tuple[str, ...]) -> Iterator[str]:
    wrong = [v for v in values if v not in allowed]
    if wrong or len(set(map(str, values))) != len(values):
        yield f"{name} is {shown(values)}; allowed: each of {', '.join(allowed)} at most once"


def _wrong_rope(parameters: Mapping[str, Any]) -> Iterator[str]:
    kind = parameters.get("rope_type")
    if not isinstance(kind, str) or kind not in ROPE_TYPES:
        yield f"rope_type is {shown(kind)}; allowed: {', '.join(ROPE_TYPES)}"
        return
    needs, takes = ROPE_TYPES[kind]
    missing = [name for name in needs if parameters.get(name) is None]
    if missing:
        yield f"rope_parameters of type {kind!r}: missing {', '.join(missing)}"
    try:
        refuse_unknown(f"rope_parameters of type {kind!r}", parameters, ("rope_type", "rope_theta", *needs, *takes))
    except ValueError as error:
        yield str(error)
    for name, value in parameters.items():
        if name == "rope_type" or (value is None and name in (*needs, *takes)):
            continue
        if name == "truncate" and not isinstance(value, bool):
            yield f"rope_parameters: truncate is {shown(value)}; allowed: true, false"
        elif name == "original_max_position_embeddings" and not is_whole(value, 1, MOST["max_position_embeddings"]):
            yield f"rope_parameters: {name} is {shown(value)}; allowed: a whole number of at least 1"
        elif name in ("rope_theta", *needs, *takes) and name != "truncate" and not is_number(value, LEAST_NUMBER):
            yield f"rope_parameters: {name} is {shown(value)}; allowed: a number above 0 that float32 can hold"
    yield from _wrong_bands(kind, parameters)


def _wrong_bands(kind: str, parameters: Mapping[str, Any]) -> Iterator[str]:
    """Yields numbers that are sound alone and not together: what lies between them is divided by."""
    theta = parameters.get("rope_theta", 10_000.0)
    if is_number(theta, LEAST_NUMBER, 1):
        yield f"rope_parameters: rope_theta is {theta}; allowed: a number above 1"
    bands = {"llama3": ("low_freq_factor", "high_freq_factor"), "yarn": ("beta_slow", "beta_fast")}
    for low, high in [bands[kind]] if kind in bands else []:
        least, most = parameters.get(low) or 1, parameters.get(high) or 32
        if is_number(least) and is_number(most) and least >= most:
            yield f"rope_parameters: {low} is {least} and {high} {most}; the first must be below the second"


def _wrong_norm(name: str, spec: Mapping[str, Any], *more: str) -> Iterator[str]:
    kind, kinds = spec.get("kind", ""), [*NORMS, *more]
    known = isinstance(kind, str) and kind in kinds
    options = set(options_of(NORMS[kind])) - {"width", "steps"} if known and kind in NORMS else {"eps"}
    if not known or set(spec) - {"kind", *options} or not (kind in more or is_number(spec.get("eps"), LEAST_NUMBER)):
        own = "" if known else f"; {CUSTOM_PART_HINT}"
        yield f"{name} is {shown(dict(spec))}; allowed: a kind ({', '.join(kinds)}) and an eps above 0 that float32 can hold{own}"


def _wrong_kept(values: Mapping[str, Any]) -> Iterator[str]:
    """Yields what transformers' own fields must not be: it would build a label for each number, or fall over a form."""
    sound = True
    for name in _KEPT.keys() & values:
        try:
            check_form(name, values[name], _KEPT[name])
        except ValueError as error:
            sound = False
            yield str(error)
    if not sound:
        return
    problem, labels = values.get("problem_type"), values.get("id2label") or {}
    if problem is not None and problem not in _PROBLEMS:
        yield f"problem_type is {shown(problem)}; allowed: {', '.join(_PROBLEMS)}"
    numbered = all(is_whole(k, 0, MOST_LABELS) or (isinstance(k, str) and k.isdecimal() and len(k) < 10) for k in labels)
    if not numbered or not all(isinstance(label, str) for label in labels.values()):
        yield f"id2label is {shown(labels)}; allowed: whole numbers with their labels"
    numbers = values.get("label2id") or {}
    as_text = bool(numbers) and all(isinstance(number, str) and number.isdecimal() for number in numbers.values())
    if not all(isinstance(label, str) and (as_text or is_whole(number)) for label, number in numbers.items()):
        yield f"label2id is {shown(numbers)}; allowed: labels with their whole numbers"
    for count, name in ((values.get("num_labels") or 0, "num_labels"), (len(labels), "id2label")):
        if not 0 <= count <= MOST_LABELS:
            yield f"{name}: {count:,} labels; allowed: at most {MOST_LABELS:,} (a language model needs none)"
    for name in ("per_layer_config", "is_encoder_decoder", "chunk_size_feed_forward"):
        if values.get(name):
            yield f"{name} is {shown(values[name])}; allowed: nothing (a looped model has none)"
    for name, known in _IMPLEMENTATIONS.items():
        if values.get(name) is not None and values[name] not in known:
            yield f"{name} is {shown(values[name])}; allowed: {', '.join(known)}"
    for name in ("dtype", "torch_dtype"):
        value = values.get(name)
        plain = str(value).removeprefix("torch.") if isinstance(value, str | torch.dtype) else value
        if value is not None and plain not in _DTYPES:
            yield f"{name} is {shown(value)}; allowed: {', '.join(_DTYPES)}"
