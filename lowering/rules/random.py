"""Typed keys and threefry: random bits equal to JAX's, as u32 arithmetic. A key is u32[2], a batch of keys u32[..., 2]."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax

from ..graph import GraphBuilder, Node
from ..registry import RuleContext, rule
from .shape import part

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def threefry2x32(graph: GraphBuilder, key: tuple[Node, Node], counters: tuple[Node, Node]) -> tuple[Node, Node]:
    """The 20-round hash of a pair of counters; all four are u32 of one shape."""
    parity = graph.map("xor", graph.map("xor", *key), graph.const(_PARITY, "u32"))
    keys = (*key, parity)
    low, high = graph.map("add", counters[0], keys[0]), graph.map("add", counters[1], keys[1])
    for group in range(5):
        for turn in _ROTATIONS[group % 2]:
            low = graph.map("add", low, high)
            left = graph.map("shift_left", high, graph.const(turn, "u32"))
            right = graph.map("shift_right_logical", high, graph.const(32 - turn, "u32"))
            high = graph.map("xor", low, graph.map("or", left, right))
        low = graph.map("add", low, keys[(group + 1) % 3])
        number = graph.const(group + 1, "u32")
        high = graph.map("add", graph.map("add", high, keys[(group + 2) % 3]), number)
    return low, high


@rule("threefry2x32")
def _(ctx: RuleContext, *args: Node) -> tuple[Node, Node]:
    shape, _dtype = ctx.out()
    first, second, low, high = (_spread(ctx.graph, a, shape) for a in args)
    return threefry2x32(ctx.graph, (first, second), (low, high))


def _spread(graph: GraphBuilder, x: Node, shape: Sequence[int]) -> Node:
    """Broadcast of sizes 1, or of a scalar."""
    return graph.broadcast(x, shape, range(len(x.shape)))


def _halves(graph: GraphBuilder, keys: Node) -> tuple[Node, Node]:
    """The two words of keys u32[..., 2]."""
    batch, axis = keys.shape[:-1], len(keys.shape) - 1
    return graph.reshape(part(graph, keys, axis, 0, 1), batch), graph.reshape(part(graph, keys, axis, 1, 2), batch)


def _join(graph: GraphBuilder, low: Node, high: Node) -> Node:
    shape = (*low.shape, 1)
    return graph.concat([graph.reshape(low, shape), graph.reshape(high, shape)], len(low.shape))


def _hash_iota(graph: GraphBuilder, keys: Node, shape: Sequence[int]) -> tuple[Node, Node]:
    """For every key, the hash of 0, 1, 2.. as 64-bit counters in row-major order of `shape`: two u32[batch ++ shape]."""
    batch = keys.shape[:-1]
    whole = (*batch, *shape)
    counter = graph.reshape(graph.iota((prod(shape),), 0, "u32"), tuple(shape))
    low = graph.broadcast(counter, whole, range(len(batch), len(whole)))
    first, second = (graph.broadcast(half, whole, range(len(batch))) for half in _halves(graph, keys))
    return threefry2x32(graph, (first, second), (graph.full(whole, 0, "u32"), low))


def _hash_flat(graph: GraphBuilder, keys: Node, count: int) -> Node:
    """JAX's older layout: counters 0..count-1 hashed as first half against second half; u32[batch ++ count]."""
    batch = keys.shape[:-1]
    half = (count + 1) // 2
    whole, axis = (*batch, half), len(batch)
    counter = graph.iota(whole, axis, "u32")
    upper = graph.map("add", counter, graph.const(half, "u32"))
    if count % 2:  # the missing last counter is 0
        inside = graph.map("lt", upper, graph.const(count, "u32"), dtype="bool")
        upper = graph.map("select_n", inside, graph.const(0, "u32"), upper, dtype="u32")
    first, second = (graph.broadcast(word, whole, range(len(batch))) for word in _halves(graph, keys))
    words = graph.concat(threefry2x32(graph, (first, second), (counter, upper)), axis)
    return part(graph, words, axis, 0, count)


def _partitionable() -> bool:
    return bool(jax.config.jax_threefry_partitionable)  # type: ignore[attr-defined]


@rule("random_seed")
def _(ctx: RuleContext, seeds: Node, **_: Any) -> Node:
    ctx.out()
    graph, words = ctx.graph, ctx.graph.convert(seeds, "u32")
    if seeds.dtype in ("i64", "u64"):
        high = graph.map("shift_right_logical", seeds, graph.const(32, seeds.dtype))
        return _join(graph, graph.convert(high, "u32"), words)
    return _join(graph, graph.full(words.shape, 0, "u32"), words)


@rule("random_wrap", "random_unwrap", "random_clone")
def _(ctx: RuleContext, keys: Node, **_: Any) -> Node:
    return keys


def _split(graph: GraphBuilder, keys: Node, shape: Sequence[int]) -> Node:
    """New keys, u32[batch ++ shape ++ 2]."""
    if _partitionable():
        return _join(graph, *_hash_iota(graph, keys, shape))
    return graph.reshape(_hash_flat(graph, keys, 2 * prod(shape)), (*keys.shape[:-1], *shape, 2))


@rule("random_split")
def _(ctx: RuleContext, keys: Node, *, shape: Sequence[int], out_sharding: Any = None) -> Node:
    result = ctx.out()[0]
    return ctx.graph.full(result, 0, "u32") if prod(result) == 0 else _split(ctx.graph, keys, shape)


@rule("random_fold_in")
def _(ctx: RuleContext, keys: Node, data: Node) -> Node:
    graph = ctx.graph
    shape = ctx.out()[0][:-1]
    first, second = (_spread(graph, half, shape) for half in _halves(graph, keys))
    counters = graph.full(shape, 0, "u32"), _spread(graph, graph.convert(data, "u32"), shape)
    return _join(graph, *threefry2x32(graph, (first, second), counters))


def _split_in(graph: GraphBuilder, keys: Node, count: int) -> list[Node]:
    """`count` new keys for each key, each of the shape of `keys`."""
    batch = len(keys.shape) - 1
    new = _split(graph, keys, (count,))
    return [graph.reshape(part(graph, new, batch, i, i + 1), keys.shape) for i in range(count)]


def _words(graph: GraphBuilder, keys: Node, shape: Sequence[int], count: int) -> list[Node]:
    """`count` (1 or even) independent words for every number, u32[batch ++ shape] each: two come of one hash."""
    if count > 2:
        return [word for key in _split_in(graph, keys, count // 2) for word in _words(graph, key, shape, 2)]
    if _partitionable():
        pair = _hash_iota(graph, keys, shape)
        return list(pair) if count == 2 else [graph.map("xor", *pair)]
    result = (*keys.shape[:-1], *shape)
    return [graph.reshape(_hash_flat(graph, key, prod(shape)), result) for key in _split_in(graph, keys, count)]


@rule("raw_bits")  # of JAX 0.12.1
def _(ctx: RuleContext, keys: Node, *, shape: Sequence[int]) -> list[Node]:
    result = ctx.out()[0]
    return [ctx.graph.full(result, 0, "u32")] * 2 if prod(result) == 0 else _words(ctx.graph, keys, shape, 2)


@rule("random_bits")
def _(
    ctx: RuleContext, keys: Node, *, bit_width: int, shape: Sequence[int], num_streams: int = 1, out_sharding: Any = None
) -> list[Node]:
    graph = ctx.graph
    result, dtype = ctx.out()
    if prod(result) == 0:
        return [graph.full(result, 0, dtype)] * num_streams
    if num_streams == 1 and not _partitionable():
        return [graph.reshape(_flat_bits(graph, keys, bit_width, prod(shape), dtype), result)]
    if bit_width == 64:
        words = _words(graph, keys, shape, 2 * num_streams)
        return [_long(graph, *pair) for pair in zip(words[::2], words[1::2], strict=True)]
    return [graph.convert(word, dtype) for word in _words(graph, keys, shape, num_streams)]


def _flat_bits(graph: GraphBuilder, keys: Node, bit_width: int, size: int, dtype: str) -> Node:
    """`size` numbers for every key in JAX's older layout, where words hold several narrow numbers."""
    batch = keys.shape[:-1]
    words = _hash_flat(graph, keys, -(-bit_width * size // 32))
    if bit_width == 64:
        return _long(graph, *(part(graph, words, len(batch), i * size, (i + 1) * size) for i in (0, 1)))
    per_word = 32 // bit_width
    if per_word > 1:
        spread = (*words.shape, per_word)
        words = graph.broadcast(words, spread, range(len(words.shape)))
        places = graph.map("mul", graph.iota(spread, len(spread) - 1, "u32"), graph.const(bit_width, "u32"))
        words = graph.map("shift_right_logical", words, places)
        words = graph.reshape(graph.convert(words, dtype), (*batch, words.shape[-2] * per_word))
        words = part(graph, words, len(batch), 0, size)
    return graph.convert(words, dtype)


def _long(graph: GraphBuilder, high: Node, low: Node) -> Node:
    """u64 of two u32."""
    shifted = graph.map("shift_left", graph.convert(high, "u64"), graph.const(32, "u64"))
    return graph.map("or", shifted, graph.convert(low, "u64"))


@rule("iota_2x32_shape")
def _(ctx: RuleContext, *, shape: Sequence[int], out_sharding: Any = None) -> tuple[Node, Node]:
    graph = ctx.graph
    return graph.full(shape, 0, "u32"), graph.reshape(graph.iota((prod(shape),), 0, "u32"), tuple(shape))
