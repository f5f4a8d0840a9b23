"""config.json as strict fields: each is taken by name and kind, and what nobody took is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig

from loopwright.model.config import LEAST_NUMBER, MOST_LAYERS, ROPE_TYPES
from loopwright.schema import LISTED, is_number, is_whole
from loopwright.untrusted import shown

# fields that any transformers model may carry and that say nothing about the forward pass
_ADMITTED = {
    "model_type", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "transformers.js_config",
    "_name_or_path", "name_or_path", "_commit_hash", "_attn_implementation", "attn_implementation",
    "_attn_implementation_autoset", "_attn_implementation_internal", "_experts_implementation_internal", "_flash_attn_2_enabled",
    "initializer_range", "use_cache", "output_attentions", "output_hidden_states", "return_dict", "torchscript", "tf_legacy_loss",
    "use_bfloat16", "unk_token_id", "sep_token_id", "cls_token_id", "mask_token_id", "decoder_start_token_id", "tokenizer_class",
    "prefix", "id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params",
    "unsloth_fixed", "unsloth_version",
}  # fmt: skip
# the same, as long as they say "no"; a field that is null or absent says "no" as well
_SILENT: dict[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (False,), "is_decoder": (False, True), "add_cross_attention": (False,),
    "cross_attention_hidden_size": (), "tie_encoder_decoder": (False,), "chunk_size_feed_forward": (0,),
    "pruned_heads": ({},), "per_layer_config": ({},), "partial_rotary_factor": (1, 1.0), "pretraining_tp": (1,),
}  # fmt: skip
# a file may leave this one out: then it is the length of the context
_ORIGINAL = "original_max_position_embeddings"


class Fields:
    """A config.json while it is read. `where` is what error messages call it."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self.values = values
        self.taken: set[str] = set()
        if values.get("quantization") is not None:
            raise ValueError(
                f"{where}: quantization says that MLX quantised the weights; allowed: plain float weights, so take the folder that "
                "this one was made from, or undo it with `mlx_lm.convert --dequantize`"
            )
        if values.get("quantization_config") is not None:
            quantization = values["quantization_config"]
            kind = shown(str(quantization.get("quant_method", "unnamed")) if isinstance(quantization, Mapping) else "unnamed")[1:-1]
            raise ValueError(
                f"{where}: quantization_config says that the weights are quantised ({kind}); allowed: plain float weights, "
                "so take the unquantised checkpoint"
            )

    def take(self, name: str, default: Any = None) -> Any:
        """Returns a field's raw value, or the default where the field is absent."""
        self.taken.add(name)
        return self.values.get(name, default)

    def whole(self, name: str, default: int | None = None, *, least: int = 1, most: int = 2**31) -> int:
        """Returns a whole number; absent and null mean the default, and without one they are refused."""
        value = self._present(name, default)
        if not is_whole(value, least, most):
            bound = f" and at most {most:,}" if is_whole(value, most, 2**63) else ""
            raise ValueError(f"{self.where}: {name} is {shown(value)}; allowed: a whole number of at least {least}{bound}")
        return value

    def layers(self, name: str, *, least: int = 1) -> int:
        """Returns a number of layers: lists of that length are made from it."""
        return self.whole(name, least=least, most=MOST_LAYERS)

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a number above zero; absent and null mean the default, and without one they are refused."""
        return self.positive(name, self._present(name, default))

    def flag(self, name: str, default: bool) -> bool:
        """Returns true or false; absent and null mean the default."""
        value = self._present(name, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self.where}: {name} is {shown(value)}; allowed: true, false")
        return value

    def section(self, name: str) -> dict[str, Any]:
        """Returns a nested object without its nulls; absent and null mean an empty one."""
        value = self.take(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise ValueError(f"{self.where}: {name} is {shown(value)}; allowed: an object or null")
        return {key: entry for key, entry in value.items() if entry is not None}

    def admit(self, *names: str) -> None:
        """Marks fields that may say anything, since they do not change the forward pass."""
        self.taken.update(names)

    def demand(self, name: str, *allowed: Any) -> None:
        """Refuses a field that is there and says something else."""
        value = self.take(name)
        if value is not None and not any(value == a and isinstance(value, bool) == isinstance(a, bool) for a in allowed):
            listed = ", ".join(repr(a) for a in allowed) or "null"
            raise ValueError(f"{self.where}: {name} is {shown(value)}, which is not supported; allowed: {listed}")

    def positive(self, name: str, value: Any) -> float:
        """Returns the value as a number above zero, or refuses it by name."""
        if not is_number(value, LEAST_NUMBER):
            raise ValueError(f"{self.where}: {name} is {shown(value)}; allowed: a number above 0 that float32 can hold")
        return float(value)

    def close(self) -> None:
        """Refuses what nobody took, where it says something."""
        for name, allowed in _SILENT.items():
            if name not in self.taken:
                self.demand(name, *allowed)
        known = self.taken | _ADMITTED | set(GenerationConfig._get_default_generation_params()) | {"quantization_config"}
        said = {name: value for name, value in self.values.items() if value is not None}
        unknown = [f"{shown(name)[1:-1]} ({shown(value)})" for name, value in said.items() if name not in known]
        if unknown:
            raise ValueError(
                f"{self.where}: unknown field {', '.join(unknown[:LISTED])}; it may change the model, so it is not passed over: "
                "if it does not, delete it from config.json"
            )

    def _present(self, name: str, default: Any) -> Any:
        value = self.take(name)
        if value is None:
            value = default
        if value is None:
            raise ValueError(f"{self.where}: {name} is missing; this family needs it")
        return value


def read_token_ids(fields: Fields) -> dict[str, Any]:
    """Returns the special token ids; a negative one, as old files have it, means none."""
    ids: dict[str, Any] = {}
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = fields.take(name)
        several = value if isinstance(value, list) and name == "eos_token_id" else [value]
        if any(v is not None and not is_whole(v) for v in several):
            raise ValueError(f"{fields.where}: {name} is {shown(value)}; allowed: a whole number or null")
        ids[name] = None if isinstance(value, int) and value < 0 else value
    return ids


def read_rope(fields: Fields, *, positions: int, theta: float | None = None) -> dict[str, Any]:
    """Returns our rope_parameters from either layout: rope_theta with rope_scaling, or rope_parameters.

    `theta` is what an absent rope_theta means; `positions` what an absent original_max_position_embeddings means.
    """
    older, newer = fields.section("rope_scaling"), fields.section("rope_parameters")
    rope = {**newer, **older}
    if any(newer.get(key, value) != value for key, value in older.items()):
        raise ValueError(
            f"{fields.where}: rope_scaling {shown(older)} and rope_parameters {shown(newer)} contradict each other; keep one"
        )
    top = fields.take("rope_theta")
    inner = rope.pop("rope_theta", None)
    if top is not None and inner is not None and top != inner:
        raise ValueError(
            f"{fields.where}: rope_theta is {shown(top)} at the top and {shown(inner)} inside rope_parameters; keep one"
        )
    base = next((t for t in (inner, top, theta) if t is not None), None)
    if base is None:
        raise ValueError(f"{fields.where}: rope_theta is missing; this family needs it")
    kind = rope.pop("rope_type", None) or rope.get("type", "default")
    rope.pop("type", None)
    if rope.pop("partial_rotary_factor", 1) != 1:
        raise ValueError(f"{fields.where}: rope partial_rotary_factor is not 1, which is not supported; allowed: 1")
    if not isinstance(kind, str) or kind not in ROPE_TYPES:
        raise ValueError(f"{fields.where}: rope_type is {shown(kind)}, which is not supported; allowed: {', '.join(ROPE_TYPES)}")
    _check_rope(fields, kind, rope)
    if _ORIGINAL in ROPE_TYPES[kind][0]:
        rope.setdefault(_ORIGINAL, positions)
    return {"rope_type": kind, "rope_theta": fields.positive("rope_theta", base), **rope}


def _check_rope(fields: Fields, kind: str, given: Mapping[str, Any]) -> None:
    needs, takes_too = ROPE_TYPES[kind]
    allowed = {*needs, *takes_too}
    unknown, missing = sorted(set(given) - allowed), sorted(set(needs) - {_ORIGINAL} - set(given))
    if unknown or missing:
        wrong = [f"unknown {shown(', '.join(unknown))[1:-1]}"] * bool(unknown) + [f"missing {', '.join(missing)}"] * bool(missing)
        takes = ", ".join(sorted(allowed)) or "no parameters"
        raise ValueError(f"{fields.where}: rope of type {kind!r}: {'; '.join(wrong)}; allowed: {takes}")
    for name, value in given.items():
        if name == "truncate" and not isinstance(value, bool):
            raise ValueError(f"{fields.where}: rope truncate is {shown(value)}; allowed: true, false")
        if name != "truncate":
            fields.positive(f"rope {name}", value)


def write_rope(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns rope_theta and rope_scaling, the layout that every version of transformers reads."""
    scaling = {key: value for key, value in parameters.items() if key != "rope_theta"}
    return {
        "rope_theta": parameters.get("rope_theta"),
        "rope_scaling": None if scaling.get("rope_type") == "default" else scaling,
    }


def read_window(fields: Fields, *, layers: int) -> int | None:
    """Returns the sliding window of a Qwen-like config.json, where all layers agree; layers that differ are refused."""
    used = fields.flag("use_sliding_window", False)
    size = fields.take("sliding_window", 4096)
    first = fields.whole("max_window_layers", 28, least=0)
    kinds = fields.take("layer_types")
    if kinds is None:
        slides = used and size is not None
        kinds = ["sliding_attention" if slides and i >= first else "full_attention" for i in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind != kinds[0] for kind in kinds):
        raise ValueError(
            f"{fields.where}: layer_types (or max_window_layers {first}) gives the {layers} layers different attention "
            f"({shown(kinds)}); allowed: the same kind for all"
        )
    if kinds[0] == "full_attention":
        return None
    if kinds[0] != "sliding_attention" or not used:
        raise ValueError(
            f"{fields.where}: layer_types says {shown(kinds[0])} with use_sliding_window {str(used).lower()}; allowed: "
            "full_attention, or sliding_attention with use_sliding_window true"
        )
    return fields.whole("sliding_window", 4096)


def write_window(window: int | None, *, layers: int) -> dict[str, Any]:
    """Returns the Qwen-like fields of one window for all layers."""
    kind = "full_attention" if window is None else "sliding_attention"
    return {
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "max_window_layers": layers if window is None else 0,
        "layer_types": [kind] * layers,
    }
