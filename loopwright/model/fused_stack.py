"""FusedStacks: the blocks of a model for a few tokens per row, five kernels a block for one token in all and seven for more.

Between the blocks of a stack the residual sum is not formed: the next kernel forms it. Sums and norms are float32 throughout; for
one token so is everything between kernels, and for more what goes into a product has the type of the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor, nn

from loopwright.kernels import sizes
from loopwright.kernels.decode_attention import attend_many, attend_one
from loopwright.kernels.products import gemm_rows, gemv, launch_options, norm_gemv, norm_rows
from loopwright.model.fused_support import adapted
from loopwright.model.keys.cache import KEYS, VALUES, LoopCache
from loopwright.model.keys.rows import FixedRows
from loopwright.model.layers import Block
from loopwright.model.parts.part import StepIndex
from loopwright.model.passes import Adaptation, Pass, Place

if TYPE_CHECKING:
    from loopwright.model.backbone import Backbone

EARLY_FROM = (9, 0)
SMALLEST_DOT = 16


class FusedStacks:
    """The fused stacks of a model for `rows` rows of `capacity` keys and `length` new tokens, and the buffers of a pass.

    A token sees all keys before it, or, where the rows are `masked`, those that the mask of the pass lets it see: masked rows have
    one new token each. Of several new tokens of a row none stands after the last one.
    """

    block_masks = False

    def __init__(self, model: Backbone, stacks: Sequence[str], rows: int, capacity: int, *, masked: bool, length: int = 1) -> None:
        assert length == 1 or not masked
        weight, config = model.embed_tokens.weight, model.config
        self.blocks: dict[str, list[Block]] = {stack: list(getattr(model, stack)) for stack in stacks}
        self.rows, self.length, self.capacity, self.masked = rows, length, capacity, masked
        self.tokens = tokens = rows * length
        self.width, self.inner, self.size = config.hidden_size, config.intermediate_size, config.head_dim
        self.size_padded = max(SMALLEST_DOT, triton.next_power_of_2(config.head_dim))
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        self.interleaved, self.eps = config.rope_layout == "interleaved", config.norm["eps"]
        self.early = weight.is_cuda and torch.cuda.get_device_capability(weight.device) >= EARLY_FROM
        self.block = min(max(SMALLEST_DOT, triton.next_power_of_2(tokens)), sizes.MOST_TOKENS)
        self.tiles = sizes.many_tokens(self.block, weight)
        # tensor cores would round float32, and `attend_many` pays without them only where the tokens of a row share its keys
        self.few_rows = length == 1 and (rows == 1 or weight.element_size() > 2)
        self.attend = sizes.attend_few(capacity)
        if not self.few_rows:
            self.attend = sizes.attend_rows(capacity, rows * self.key_heads, bytes_each=weight.element_size())

        def buffer(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=weight.device)

        kept = torch.float32 if tokens == 1 else weight.dtype
        splits = {name: 1 if tokens == 1 else tile.splits for name, tile in self.tiles.items()}
        self.states = [buffer(tokens, self.width) for _ in range(2)]
        # the product that waits to be added to the residual: its parts, and the norms around it
        self.pending: tuple[int, Tensor | None, Tensor | None] | None = None
        self.y = buffer(max(splits["o"], splits["down"]), tokens, self.width)
        self.z = buffer(splits["qkv"], tokens, (self.heads + 2 * self.key_heads) * self.size)
        self.h, self.a = buffer(tokens, self.width, dtype=kept), buffer(tokens, self.heads * self.size, dtype=kept)
        self.g = buffer(tokens, self.inner, dtype=kept)
        parts = tokens * self.heads * self.attend.splits
        self.parts, self.stats = buffer(parts, self.size), buffer(parts, 2)
        self.ended = buffer(tokens * self.heads, dtype=torch.int32)

    def takes(self, stack: str, adapt: Adaptation | None) -> bool:
        """Says whether a stack runs here, with what its adapters do at the step."""
        return stack in self.blocks and not adapted(stack, adapt)

    def run(self, stack: str, x: Tensor, p: Pass, step: StepIndex) -> Tensor:
        """Returns what the blocks of a stack make of x [B, T, D]; their keys and values go to the cache of the pass."""
        self.x, self.pending = x.reshape(self.tokens, self.width).contiguous(), None
        for layer, block in enumerate(self.blocks[stack]):
            attention, mlp = block.self_attn, block.mlp
            maps = (attention.q_proj, attention.k_proj, attention.v_proj)
            self._product("qkv", maps, _gain(block.attention_norms.input), self.z)
            self._attend(Place(stack, step, layer), p)
            self._branch("o", attention.o_proj, self.a, block.attention_norms)
            self._product("gate_up", (mlp.gate_proj,), _gain(block.mlp_norms.input), self.g, up=mlp.up_proj)
            self._branch("down", mlp.down_proj, self.g, block.mlp_norms)
        out = torch.empty(self.tokens, self.width, dtype=x.dtype, device=x.device)
        self._normed(None, out, None)
        return out.view(self.rows, self.length, self.width)

    # the parts of a block

    def _product(self, name: str, maps: Sequence[nn.Linear], gain: Tensor | None, out: Tensor, up: nn.Linear | None = None) -> None:
        """Makes maps that share an input of the normed residual sum."""
        widths = [linear.out_features for linear in maps]
        weights, biases = _three([linear.weight for linear in maps]), _three([linear.bias for linear in maps])
        given = (*weights, *biases, None if up is None else up.weight, None if up is None else up.bias, out)
        first, second = widths[0], widths[1] if len(widths) > 1 else 0
        if self.tokens > 1:
            self._normed(gain, self.states[0], self.h)
            self._many(name, self.h, given, (sum(widths), first, second, self.width))
            return
        padded = triton.next_power_of_2(self.width)
        size = sizes.one_token(name, padded)
        norm_gemv[(triton.cdiv(sum(widths), size.rows),)](
            self.x, *self._added(), gain, self.states[0], *given, self.eps, sum(widths), first, second, self.width, padded,
            size.rows, self.early, **launch_options(size.warps, early=self.early),
        )  # fmt: skip
        self._moved(self.states[0])

    def _branch(self, name: str, linear: nn.Linear, x: Tensor, norms: nn.Module) -> None:
        """Ends a branch by its bare product, which the next kernel adds to the residual."""
        width = linear.in_features
        if self.tokens > 1:
            given = (linear.weight, None, None, linear.bias, None, None, None, None, self.y)
            self._many(name, x, given, (self.width, self.width, 0, width))
        else:
            inner = min(sizes.INNER, triton.next_power_of_2(width))
            size = sizes.one_token(name, inner)
            gemv[(triton.cdiv(self.width, size.rows),)](
                linear.weight, linear.bias, x, self.y, self.width, width, inner, size.rows, self.early,
                **launch_options(size.warps, early=self.early),
            )  # fmt: skip
        splits = self.tiles[name].splits if self.tokens > 1 else 1
        self.pending = (splits, _gain(norms.output), _gain(norms.residual))

    def _many(self, name: str, x: Tensor, given: Sequence[Tensor | None], shape: tuple[int, int, int, int]) -> None:
        tile = self.tiles[name]
        gemm_rows[(triton.cdiv(shape[0], tile.columns), tile.splits, triton.cdiv(self.tokens, self.block))](
            x, *given, self.tokens, *shape, self.block, tile.columns, tile.inner, tile.splits, tile.stages,
            sizes.AHEAD, self.early, num_stages=tile.stages, **launch_options(tile.warps, early=self.early),
        )  # fmt: skip

    def _normed(self, gain: Tensor | None, x_out: Tensor, h_out: Tensor | None) -> None:
        """Forms the residual sum, and its norm where one is wanted."""
        splits = self.pending[0] if self.pending else 1
        norm_rows[(self.tokens,)](
            self.x, *self._added(), gain, x_out, h_out, self.tokens, self.eps, self.width, triton.next_power_of_2(self.width),
            splits, self.early, **launch_options(8, early=self.early),
        )  # fmt: skip
        self._moved(x_out)

    def _attend(self, place: Place, p: Pass) -> None:
        keys, values, starts, index = _held(place, p)
        cos, sin = (None, None) if p.rotary is None else p.rotary
        mask = p.mask if self.masked else None
        size, stride = self.attend, 0 if cos is None or cos[..., 0].numel() == 1 else self.size
        given = (
            self.z, keys, values, starts, cos, sin, mask, index, self.parts, self.stats, self.ended, self.a, self.capacity,
            stride, self.z[0].numel(), self.size**-0.5, self.heads, self.key_heads, self.size, self.size_padded, self.interleaved,
            self.z.shape[0], size.splits, triton.next_power_of_2(size.splits), 0 if starts is not None else size.chunk, size.block,
        )  # fmt: skip
        if self.few_rows:
            attend_one[(self.heads, size.splits, self.rows)](*given, self.early, **launch_options(size.warps, early=self.early))
            return
        grouped = max(SMALLEST_DOT, triton.next_power_of_2(self.heads // self.key_heads * self.length))
        attend_many[(self.key_heads, size.splits, self.rows)](
            *given, grouped, self.length, triton.next_power_of_2(self.length), size.stages, self.early, num_stages=size.stages,
            **launch_options(size.warps, early=self.early),
        )  # fmt: skip

    # what a kernel is given

    def _added(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Returns the product that waits to be added to the residual, with the norms around it."""
        return (self.y, *self.pending[1:]) if self.pending else (None, None, None)

    def _moved(self, x: Tensor) -> None:
        """Notes where the residual stands now; the next kernel writes to the other buffer, since programs still read this one."""
        self.x, self.pending = x, None
        if x is self.states[0]:
            self.states.reverse()


def _held(place: Place, p: Pass) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Returns keys and values of a layer, where those of each row begin (None: end to end), and where its new tokens stand."""
    if isinstance(p.cache, FixedRows):
        pool = p.cache.pool
        return (
            pool.keys[place.stack][place.layer],
            pool.values[place.stack][place.layer],
            p.cache.starts[place.stack],
            p.cache.positions,
        )
    assert isinstance(p.cache, LoopCache)
    stack, slot = p.cache.slot_of(place, p)
    assert isinstance(slot, int)
    return p.cache.tables[stack, KEYS].views[slot], p.cache.tables[stack, VALUES].views[slot], None, p.batch_span.index


def _three(tensors: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    return (*tensors, None, None)[:3]


def _gain(norm: Any) -> Tensor | None:
    """Returns the factors of a norm: of one that scales alone, as `fused_support` has made sure, or of none at all."""
    return None if isinstance(norm, nn.Identity) else norm.weight
