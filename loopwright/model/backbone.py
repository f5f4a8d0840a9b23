"""Backbone: embed → unroll → features. The modules of a looped transformer without its head, and the one loop of the code base.

One step is one equation: s′ = gate(s, end_norm_t(core(inject_t(s, e); adapters_t))). `unroll` yields the state after each
step; training, tracing, sweeps, early exit and serving differ only in who consumes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from loopwright.model.config import LoopedConfig
from loopwright.model.keys.borrowed import BorrowedCache
from loopwright.model.keys.cache import LoopCache
from loopwright.model.layers import Block, Rotary, build_norm, build_norms
from loopwright.model.parts.adapters import build_adapters
from loopwright.model.parts.gate import GATES
from loopwright.model.parts.halting import HALTINGS
from loopwright.model.parts.init import Law, init_of
from loopwright.model.parts.injection import INJECTIONS
from loopwright.model.parts.part import FIRST, Part, RowSteps, StepIndex
from loopwright.model.parts.state import STATES, fresh_seeds
from loopwright.model.passes import (
    Adaptation,
    Expected,
    KeyStore,
    LayerOutputs,
    Pass,
    Place,
    Reading,
    StackRunner,
    Unrolled,
    kept,
    mixes_states,
    open_pass,
    pick,
    weighted_sum,
)
from loopwright.model.quantised import check_unquantised
from loopwright.model.room import need_room
from loopwright.model.span import RowSpan, Span, place_tokens
from loopwright.model.taps import Tap, check_tap
from loopwright.model.traced import is_recorded
from loopwright.schema import build_kind

StepRunner = Callable[[Tensor, Tensor, int, Pass], Tensor]
# what is made of the features of a reading: logits, or nothing more
Reader = Callable[[Tensor, Pass], Tensor]


class Backbone(PreTrainedModel):
    """The stacks, parts and norms of a looped transformer. Abstract: `LoopedModel` and `LoopedForCausalLM` are built on it."""

    config_class = LoopedConfig
    config: LoopedConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    has_head = False  # whether a pass ends in logits
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["Block"]  # noqa: RUF012

    def __init__(self, config: LoopedConfig) -> None:
        need_room(config)
        super().__init__(config)
        width, steps = config.hidden_size, config.max_steps
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        if config.positions == "learned":
            self.embed_positions = nn.Embedding(config.max_position_embeddings, width)
        self.embed_norm = build_norm(config.norm, width) if config.embedding_norm else nn.Identity()
        self.prelude = nn.ModuleList(Block(config) for _ in range(config.prelude_layers))
        self.core = nn.ModuleList(Block(config) for _ in range(config.core_layers))
        self.coda = nn.ModuleList(Block(config) for _ in range(config.coda_layers))
        if config.end_norm in ("every", "per-step"):
            self.end_norm = build_norm(config.norm, width, steps=steps if config.end_norm == "per-step" else None)
        if config.layer_post_norm != "none":
            self.layer_post_norm = build_norms(config.layer_post_norm, config.norm, width, steps, config.core_layers)
        self.state = build_kind(config.state, STATES, config)
        self.injection = build_kind(config.injection, INJECTIONS, config)
        self.adapters = nn.ModuleList(build_adapters(config))
        self.gate = build_kind(config.gate, GATES, config)
        self.halting = build_kind(config.halting, HALTINGS, config)
        self.norm = nn.Identity() if config.final_norm["kind"] == "none" else build_norm(config.final_norm, width)
        self.leaks_future = any(module.leaks_future for module in self.modules() if isinstance(module, Part))
        self.rotary = Rotary(config) if config.positions == "rotary" else None

    # the three stages

    def embed(
        self,
        input_ids: Tensor | None = None,
        *,
        depth: int = 1,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        segment_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        cache: LoopCache | BorrowedCache | None = None,
        tap: Tap | None = None,
        outputs: LayerOutputs | None = None,
        fused: StackRunner | None = None,
    ) -> tuple[Tensor, Pass]:
        """Returns the input e [B, T, D], through the prelude, and the pass that later stages need.

        `depth` is how many steps the cache, if any, makes room for; `outputs` keeps what the layers leave; `fused` runs the stacks
        that have another form.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("input: give either input_ids or inputs_embeds, not both and not neither")
        if input_ids is not None and (not isinstance(input_ids, Tensor) or input_ids.dim() != 2 or input_ids.is_floating_point()):
            given = type(input_ids).__name__
            if isinstance(input_ids, Tensor):
                given = f"{input_ids.dtype} of shape {tuple(input_ids.shape)}"
            raise ValueError(f"input_ids: must be a tensor of whole numbers, one row per sequence [B, T] (got {given})")
        if inputs_embeds is not None:
            x = inputs_embeds * self.config.embedding_scale
        else:
            assert input_ids is not None
            x = self.token_vectors(input_ids)
        rows, length = x.shape[:2]
        if not rows or not length:
            raise ValueError(f"input: shape {(rows, length)} holds no token")
        if cache is not None:
            cache.fit_rows(rows)
        span = place_tokens(
            rows, length, x.device,
            cache=cache, attention_mask=attention_mask, position_ids=position_ids, segment_ids=segment_ids,
        )  # fmt: skip
        self._check_positions(span)
        if cache is not None:
            cache.reserve(span, depth, x)
        return self.embed_at(x, span, cache=cache, tap=tap, outputs=outputs, fused=fused)

    def embed_at(
        self,
        x: Tensor,
        span: Span | RowSpan,
        *,
        cache: KeyStore | None = None,
        tap: Tap | None = None,
        outputs: LayerOutputs | None = None,
        fused: StackRunner | None = None,
    ) -> tuple[Tensor, Pass]:
        """Returns the input e and the pass of embedded tokens x [B, T, D] that stand at `span`."""
        window = self.config.sliding_window
        p = open_pass(span, self.rotary, window, x.dtype, cache=cache, tap=tap, outputs=outputs, fused=fused)
        return self.run_prelude(x, p), p

    def run_prelude(self, x: Tensor, p: Pass) -> Tensor:
        """Returns the input e [B, T, D] of embedded tokens x of a pass that is open."""
        if self.config.positions == "learned":
            x = x + self.embed_positions(p.span.positions)
        x = F.dropout(self.embed_norm(x), self.config.dropout, self.training)
        x = p.see("embed", x, Place("prelude", FIRST, 0))
        p.keep_state(x, Place("prelude", FIRST, -1))
        return self.run_layers("prelude", x, p, FIRST)

    def token_vectors(self, input_ids: Tensor) -> Tensor:
        """Returns the scaled embedding rows of tokens, [B, T, D]."""
        try:
            return self.embed_tokens(input_ids) * self.config.embedding_scale
        except IndexError:
            low, high = int(input_ids.min()), int(input_ids.max())
            raise ValueError(f"input_ids: from {low} to {high}; allowed: 0 to {self.config.vocab_size - 1}") from None

    def start_state(self, e: Tensor, p: Pass, seed: int | Tensor | None = None) -> Tensor:
        """Returns the state before the first step, [B, T, D]; `seed` is one for all rows, or a tensor of one per row.

        Without one, a state that is drawn is drawn anew in each pass that trains, by torch's generator; else it is always the same.
        """
        if seed is None and self.training and self.state.seeded:
            return self.start_anew(e, p, fresh_seeds(e.shape[0], e.device))
        if seed is not None and not isinstance(seed, int) and not (isinstance(seed, Tensor) and seed.numel() in (1, e.shape[0])):
            raise ValueError(f"state_seed: {seed!r}; allowed: a whole number, or a tensor of one per row ({e.shape[0]})")
        return self.state(e, p.span.positions, seed)

    def start_anew(self, e: Tensor, p: Pass, seeds: Tensor) -> Tensor:
        """Returns the state before the first step of rows that train, each with its own seed [B].

        By the place in the row, where positions begin anew with every document: else those of a row would share their noise.
        """
        return self.state(e, p.batch_span.places(), seeds)

    def step(self, s: Tensor, e: Tensor, t: int | Tensor | RowSteps, p: Pass) -> Tensor:
        """Returns the state after step `t`, an int or one index per row [B]: what the next step takes in.

        A cache keeps what a row's step wrote last: a row that waits for others repeats its step from the same state.
        """
        index = self.step_index(t)
        if p.cache is not None:
            p.cache.begin_step(t)
        return self.step_at(s, e, index, p)

    def step_at(self, s: Tensor, e: Tensor, index: StepIndex, p: Pass) -> Tensor:
        """Returns the state after the step at `index`; a cache, if any, has been told of it."""
        x = self.run_layers("core", self.injection(s, e, index), p, index, read=s)  # unnamed here, what enters is freed there
        if self.config.end_norm == "every":
            x = self.end_norm(x)
        elif self.config.end_norm == "per-step":
            x = self.end_norm(x, index)
        place = Place("core", index, len(self.core))
        s = self.gate(s, x, index) if p.tap is None else self.gate.watched(s, x, index, lambda g: p.see("gate", g, place))
        s = p.see("state", s, place)
        p.keep_state(s, Place("core", index, len(self.core) - 1))  # what the last layer leaves is what the step leaves
        return s

    def unroll(
        self, e: Tensor, depth: int, p: Pass, *, state: Tensor | None = None, first_step: int = 0, step: StepRunner | None = None
    ) -> Iterator[Tensor]:
        """Yields the state after each of `depth` steps, from `state` (or the model's own start) at `first_step`.

        `step` runs in the place of `self.step`: compiled, rematerialised, watched.
        """
        s = self.start_state(e, p) if state is None else state
        if not self.config.is_looped:
            yield s
            return
        step = self.step if step is None else step
        for t in range(first_step, first_step + depth):
            s = step(s, e, t, p)
            yield s

    def halting_value(self, before: Tensor, after: Tensor, e: Tensor, t: int | Tensor | RowSteps, p: Pass) -> Tensor:
        """Returns the halting value [B, T, 1] of step `t`, which was run last, from the state `before` it to the one `after` it."""
        if self.halting.reads == "after":
            return self.halting.value(after)
        index = self.step_index(t)
        adapt = self._adaptation("core", index, before, p)
        taken = self.injection(before, e, index)
        return self.halting.value(taken if adapt is None else adapt.shift(taken))

    def halting_values(self, start: Tensor, states: Sequence[Tensor], e: Tensor, p: Pass) -> Tensor:
        """Returns the halting values [B, T, depth] of the states after every step, from the state before the first."""
        pairs = zip((start, *states[:-1]), states, strict=True)
        return torch.cat([self.halting_value(before, after, e, t, p) for t, (before, after) in enumerate(pairs)], dim=-1)

    def features(self, s: Tensor, p: Pass, *, reading: Reading | None = None, keep: int | Tensor = 0) -> Tensor:
        """Returns what the head reads of a state: coda and final norm; of the last `keep` positions, or those it names.

        `reading` says after how many steps the state stands (one number, or one per row [B]). The coda's keys depend on it, so a
        pass on a cache needs it where there is a coda.
        """
        p = p.at_reading(reading)
        x = self.run_layers("coda", self.norm(s) if self.config.end_norm == "last" else s, p, FIRST)
        y = self.norm(kept(x, keep))
        if p.outputs is not None:
            p.outputs.last = self.norm(x) if isinstance(keep, Tensor) or keep else y
        return y

    def _adaptation(self, stack: str, step: StepIndex, x: Tensor, p: Pass) -> Adaptation | None:
        effects = [adapter.begin(step, x, p) for adapter in self.adapters if adapter.stack == stack]
        return Adaptation(effects) if effects else None

    def run_layers(self, stack: str, x: Tensor, p: Pass, step: StepIndex, *, read: Tensor | None = None) -> Tensor:
        """Returns what the layers of a stack make of x; in another form where the pass has one (fused kernels, compiled).

        Its adapters read `read`: x itself where that is left out.
        """
        adapt = self._adaptation(stack, step, x if read is None else read, p)
        if adapt is not None:
            x = adapt.shift(x)
        if p.fused is not None and p.fused.takes(stack, adapt):
            return p.fused.run(stack, x, p, step)
        normed = stack == "core" and self.config.layer_post_norm != "none"
        for layer, block in enumerate(getattr(self, stack)):
            place = Place(stack, step, layer)
            if block.gradient_checkpointing:
                self._check_reentrant(block)
            x = block(x, p, place, adapt)
            if normed:
                x = self._norm_layer(x, layer, step)
            p.keep_state(x, place)
        return x

    def _norm_layer(self, x: Tensor, layer: int, step: StepIndex) -> Tensor:
        """Returns what a layer of the core leaves, after the norm that stands behind it."""
        kind = self.config.layer_post_norm
        norm: Any = self.layer_post_norm
        if kind == "per-layer-and-step":
            norm = norm[layer]
        return norm(x) if kind == "shared" else norm(x, step)

    def _check_reentrant(self, block: nn.Module) -> None:
        """Raises where a layer would be recomputed by nested backward passes that layers cannot share."""
        run = block._gradient_checkpointing_func
        reentrant = isinstance(run, partial) and run.keywords.get("use_reentrant") is not False  # torch's default
        if reentrant and self.training and torch.is_grad_enabled() and any(adapter.shares_work for adapter in self.adapters):
            raise ValueError(
                "gradient checkpointing: use_reentrant is not False, and layers share what the controller makes of a state, of "
                "which it would need a second backward pass; take False, with peft prepare_model_for_kbit_training(model, "
                'gradient_checkpointing_kwargs={"use_reentrant": False})'
            )

    def _run(
        self, tokens: dict[str, Any], *, depth: int, initial_state: Tensor | None, seed: int | Tensor | None,
        readings: Sequence[int | Expected], select: str, output_steps: bool, keep: int | Tensor, read: Reader,
    ) -> Unrolled:  # fmt: skip
        """Runs `depth` steps over the tokens (the arguments of `embed`) and reads the states out at `readings`."""
        cache: LoopCache | BorrowedCache | None = tokens["cache"]
        if tokens["tap"] is not None:
            check_tap(tokens["tap"], self.config, depth, head=self.has_head)
        e, p = self.embed(depth=depth, **tokens)
        state = self._first_state(e, p, initial_state, seed)
        if cache is not None:
            cache.make_room(readings)
        wanted, mixes = set(readings), mixes_states(select, self.halting)
        states: list[Tensor] = []
        halts: list[Tensor] = []
        results: list[Tensor] = []
        before = state
        for steps, s in enumerate(self.unroll(e, depth, p, state=state), start=1):
            if self.halting.mixes is not None:
                halts.append(self.halting_value(before, s, e, steps - 1, p))
            before = s
            if output_steps or mixes:
                states.append(s)
            if steps in wanted:
                features = self.features(s, p, reading=steps, keep=keep)
                results.append(read(features, p))
        exit_probs: Any = self.halting(torch.cat(halts, dim=-1)) if halts else None
        if mixes:
            features = self.features(weighted_sum(exit_probs, states), p, reading=readings[-1], keep=keep)
            answer = read(features, p)
        else:
            answer = pick(results, exit_probs, select, self.halting, keep)
        return Unrolled(answer, results, features, states, exit_probs, p.batch_span)

    def _layer_outputs(self, hidden_states: bool | None, attentions: bool | None) -> LayerOutputs | None:
        """Returns where a pass keeps what its layers leave, or None; the config decides what the call leaves open."""
        hidden_states = self.config.output_hidden_states if hidden_states is None else hidden_states
        attentions = self.config.output_attentions if attentions is None else attentions
        asked = hidden_states or attentions
        return LayerOutputs(hidden_states=bool(hidden_states), attentions=bool(attentions)) if asked else None

    def _ready(
        self, given: Cache | None, wanted: bool | None, depth: int, readings: Sequence[int | Expected], mask: Tensor | None
    ) -> LoopCache | BorrowedCache | None:
        """Returns the cache of a pass; what it misses is refused before anything is written."""
        cache = self._usable_cache(given, wanted, mask)
        if cache is not None:
            cache.check(depth if self.config.is_looped else 0, readings)
        return cache

    def _usable_cache(self, cache: Cache | None, wanted: bool | None, mask: Tensor | None) -> LoopCache | BorrowedCache | None:
        if cache is None:
            if wanted is None:  # as in transformers, but only where keys are of use: not under gradients, nor in what is recorded
                inference = not (self.training or torch.is_grad_enabled() or is_recorded())
                wanted = self.config.use_cache and inference and not self.leaks_future
            return LoopCache(self.config) if wanted else None
        if isinstance(cache, LoopCache):
            return cache
        if self.training and self.is_gradient_checkpointing:
            raise ValueError(
                f"past_key_values: {type(cache).__name__} would take the keys of a layer that is recomputed twice; leave it out"
            )
        return BorrowedCache(self.config, cache, mask)

    def _first_state(self, e: Tensor, p: Pass, initial_state: Tensor | None, seed: int | Tensor | None) -> Tensor:
        if initial_state is None:
            return self.start_state(e, p, seed)
        if initial_state.shape != e.shape:
            raise ValueError(
                f"initial_state: shape {tuple(initial_state.shape)}; allowed: {tuple(e.shape)}, one vector per new token"
            )
        return initial_state.to(e)

    def _check_positions(self, span: Span) -> None:
        limit = self.config.max_position_embeddings
        counted = not span.explicit and (span.plain or not span.offset)  # from 0 on, as the span says
        if self.config.positions != "learned" or (counted and span.extent <= limit):
            return
        if is_recorded():  # what is recorded must not depend on what a tensor holds; the lookup itself refuses
            return
        last = int(span.positions.max())
        if last >= limit:
            raise ValueError(f"input: position {last}; learned positions end at max_position_embeddings={limit}")

    def step_index(self, t: int | Tensor | RowSteps) -> StepIndex:
        """Returns step `t` with the row of the per-step tables that it reads; one that has none is refused."""
        limit = self.config.max_steps
        known, t = (max(t.values), t.tensor) if isinstance(t, RowSteps) else (t, t)
        if limit is None:
            return StepIndex(t, t)
        if self.config.beyond_max_steps == "repeat":
            return StepIndex(t, t.clamp(max=limit - 1) if isinstance(t, Tensor) else min(t, limit - 1))
        if int(known.max() if isinstance(known, Tensor) else known) >= limit:
            raise ValueError(
                f"step: {t} is beyond max_steps={limit}; {', '.join(self.config.step_tables)} have no later parameters"
            )
        return StepIndex(t, t)

    # what transformers asks of a model

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Returns the model as transformers loads it, with what is frozen frozen again."""
        loaded = super().from_pretrained(*args, **kwargs)
        for module in (loaded[0] if isinstance(loaded, tuple) else loaded).modules():
            if isinstance(module, Part) and module.frozen:
                module.requires_grad_(False)
        return loaded

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """Writes the model as transformers does; weights that were quantised behind its back are refused."""
        if getattr(self, "hf_quantizer", None) is None:
            check_unquantised("save", self)
        return super().save_pretrained(*args, **kwargs)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embed_tokens = value  # type: ignore[assignment]  # whatever the caller puts there

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        """Starts a module once. Of code that is not its own, transformers passes over modules whose own parameters are all loaded:
        a part that holds none but those of its modules would count among them, and never start."""
        own = next(module.parameters(recurse=False), None)
        super()._initialize_weights(module, is_custom_code and own is not None)

    def start_of(self, module: nn.Module) -> Iterator[tuple[Tensor, Law]]:
        """Yields the tensors of an embedding or a linear map, each with how it starts."""
        init = init_of(self.config)
        if isinstance(module, nn.Embedding):
            yield module.weight, init.table(module.embedding_dim)
        elif isinstance(module, nn.Linear):
            blocks = [*self.prelude, *self.core, *self.coda]
            if any(module is block.self_attn.o_proj or module is block.mlp.down_proj for block in blocks):
                start = init.residual
            else:
                start = init.injection if any(module is part for part in self.injection.modules()) else init.matrix
            yield module.weight, start(module.in_features, module.out_features)
            if module.bias is not None:
                yield module.bias, init.bias(module.in_features)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        for tensor, law in self.start_of(module):
            law.fill(tensor)
        if isinstance(module, Part):
            module.start()
