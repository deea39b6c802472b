"""NumPy evaluator of a Graph: an oracle for tests and for bisecting a wrong result. Never on the run path.

Elementwise operations call JAX's own on the CPU where NumPy has no exact equal. It is slow and obvious on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np
from jax import lax

from .dtypes import DTYPES
from .graph import Dot, Gather, Graph, Loop, Node, Reduce, Scatter, Window

Values = dict[Node, Any]


def evaluate(graph: Graph, *arrays: Any) -> list[np.ndarray]:
    """Outputs of `graph` on `arrays` (shapes and dtypes of its inputs).

    Raises:
        ValueError: an argument or a computed value differs from its node in shape or dtype.
    """
    values: Values = {}
    inputs = dict(zip(graph.inputs, arrays, strict=True))
    for node in graph.nodes:
        value = inputs[node] if node.op == "input" else _OPS[node.op](node, *(values[a] for a in node.args))
        if node.op != "loop":
            value = np.asarray(value)
            if value.shape != node.shape or value.dtype != DTYPES[node.dtype].numpy:
                raise ValueError(f"{node!r} evaluates to {value.dtype}{list(value.shape)}, from {node.attr}")
        values[node] = value
    return [values[n] for n in graph.outputs]


def _broadcast(node: Node, x: np.ndarray) -> np.ndarray:
    shape = [1] * len(node.shape)
    for i, dim in enumerate(node.attr):
        shape[dim] = x.shape[i]
    order = np.argsort(node.attr, kind="stable")
    return np.broadcast_to(x.transpose(order).reshape(shape), node.shape)


def _slice(node: Node, x: np.ndarray) -> np.ndarray:
    starts, strides = node.attr
    return x[tuple(slice(a, a + s * n, s) if n else slice(0, 0) for a, s, n in zip(starts, strides, node.shape, strict=True))]


def _at(x: np.ndarray, places: Sequence[np.ndarray], fill: Any) -> np.ndarray:
    """x at open-mesh index arrays, `fill` where an index is outside."""
    inside: Any = True
    for place, size in zip(places, x.shape, strict=True):
        inside = inside & (place >= 0) & (place < size)
    shape = np.broadcast_shapes(*(p.shape for p in places)) if places else ()
    if x.size == 0:
        return np.full(shape, fill, x.dtype)
    clipped = tuple(np.clip(p, 0, size - 1) for p, size in zip(places, x.shape, strict=True))
    return np.where(np.broadcast_to(inside, shape), x[clipped] if places else x, fill).astype(x.dtype)


def _mesh(dims: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [d.reshape(d.shape + (1,) * (len(dims) - 1 - i)) for i, d in enumerate(dims)]


def _pad(node: Node, x: np.ndarray, fill: np.ndarray) -> np.ndarray:
    places = []
    for (low, interior), count, size in zip(node.attr, node.shape, x.shape, strict=True):
        offset = np.arange(count) - low
        hit = offset % (interior + 1) == 0
        places.append(np.where(hit, offset // (interior + 1), -1) if size else np.full(count, -1))
    return _at(x, _mesh(places), fill)


def _window(node: Node, x: np.ndarray, fill: np.ndarray) -> np.ndarray:
    rank = x.ndim
    places = []
    for dim, window in enumerate(node.attr):
        assert isinstance(window, Window)
        output = np.arange(node.shape[dim]).reshape([-1 if i == dim else 1 for i in range(2 * rank)])
        inner = np.arange(window.size).reshape([-1 if i == rank + dim else 1 for i in range(2 * rank)])
        offset = window.stride * output + window.dilation * inner - window.low
        places.append(np.where(offset % window.base == 0, offset // window.base, -1))
    return np.broadcast_to(_at(x, places, fill), node.shape)


def _clamped(starts: Sequence[Any], shape: Sequence[int], part: Sequence[int]) -> tuple[slice, ...]:
    lows = [min(max(int(s), 0), n - p) for s, n, p in zip(starts, shape, part, strict=True)]
    return tuple(slice(low, low + p) for low, p in zip(lows, part, strict=True))


def _dynamic_slice(node: Node, x: np.ndarray, *starts: Any) -> np.ndarray:
    return x[_clamped(starts, x.shape, node.shape)]


def _dynamic_update_slice(_node: Node, x: np.ndarray, update: np.ndarray, *starts: Any) -> np.ndarray:
    result = x.copy()
    result[_clamped(starts, x.shape, update.shape)] = update
    return result


def _gather(node: Node, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    attr: Gather = node.attr
    result = np.empty(node.shape, x.dtype)
    batch_dims = [d for d in range(len(node.shape)) if d not in attr.offset_dims]
    kept = [d for d in range(x.ndim) if d not in attr.collapsed and d not in attr.operand_batch]
    for batch in np.ndindex(*indices.shape[:-1]):
        starts, inside = _starts(
            batch, indices[batch], attr.start_map, attr.operand_batch, attr.indices_batch, x.shape, attr.slice_sizes
        )
        target: list[Any] = [slice(None)] * len(node.shape)
        for dim, place in zip(batch_dims, batch, strict=True):
            target[dim] = place
        if not inside and attr.mode == "fill":
            result[tuple(target)] = attr.fill
            continue
        piece = x[_clamped(starts, x.shape, attr.slice_sizes)]
        result[tuple(target)] = piece.reshape([attr.slice_sizes[d] for d in kept])
    return result


def _starts(
    batch: tuple[int, ...],
    index: np.ndarray,
    start_map: Sequence[int],
    operand_batch: Sequence[int],
    indices_batch: Sequence[int],
    shape: Sequence[int],
    sizes: Sequence[int],
) -> tuple[list[int], bool]:
    """Corner in the operand that a row of indices points at, and whether its whole window is inside."""
    starts = [0] * len(shape)
    for component, dim in enumerate(start_map):
        starts[dim] = int(index[component])
    for dim, source in zip(operand_batch, indices_batch, strict=True):
        starts[dim] = batch[source]
    return starts, all(0 <= s <= n - p for s, n, p in zip(starts, shape, sizes, strict=True))


_SCATTER: dict[str, Callable[[Any, Any], Any]] = {
    "set": lambda _old, new: new,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def _scatter(node: Node, x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
    attr: Scatter = node.attr
    result = x.copy()
    dropped = {*attr.inserted, *attr.operand_batch}
    kept = [d for d in range(x.ndim) if d not in dropped]
    sizes = [1] * x.ndim
    for dim, window in zip(kept, attr.window_dims, strict=True):
        sizes[dim] = updates.shape[window]
    batch_dims = [d for d in range(updates.ndim) if d not in attr.window_dims]
    combine = _SCATTER[attr.kind]
    for batch in np.ndindex(*(updates.shape[d] for d in batch_dims)):
        starts, inside = _starts(
            batch, indices[batch], attr.scatter_map, attr.operand_batch, attr.indices_batch, x.shape, sizes
        )
        if not inside and attr.mode != "clip":
            continue
        source: list[Any] = [slice(None)] * updates.ndim
        for dim, place in zip(batch_dims, batch, strict=True):
            source[dim] = place
        where = _clamped(starts, x.shape, sizes)
        result[where] = combine(result[where], updates[tuple(source)].reshape(sizes))
    return result


_UFUNCS: dict[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _reduce(node: Node, *args: np.ndarray) -> np.ndarray:
    attr: Reduce = node.attr
    x = args[0]
    if attr.kind == "custom":
        return _custom_reduce(attr, args)
    if attr.kind.startswith("arg"):
        return getattr(np, attr.kind)(_widened(x), axis=attr.axes[0]).astype(DTYPES[node.dtype].numpy)
    if x.dtype == np.bool_ and attr.kind in ("sum", "prod"):
        return {"sum": np.any, "prod": np.all}[attr.kind](x, axis=attr.axes)
    wide = _widened(x)
    from .rules.reduce import identity

    start = np.asarray(identity(attr.kind, node.dtype), dtype=wide.dtype)
    with np.errstate(all="ignore"):
        return _UFUNCS[attr.kind].reduce(wide, axis=attr.axes, dtype=wide.dtype, initial=start[()]).astype(x.dtype)


def _custom_reduce(attr: Reduce, args: Sequence[np.ndarray]) -> np.ndarray:
    assert attr.combiner is not None
    half = len(args) // 2
    kept = [d for d in range(args[0].ndim) if d not in attr.axes]
    rows = [x.transpose(*kept, *attr.axes).reshape(prod(x.shape[d] for d in kept), -1) for x in args[:half]]
    result = np.empty(rows[0].shape[0], rows[attr.result].dtype)
    for i in range(result.size):
        state = list(args[half:])
        for j in range(rows[0].shape[1]):
            state = evaluate(attr.combiner, *state, *(r[i, j] for r in rows))
        result[i] = state[attr.result]
    return result.reshape([args[0].shape[d] for d in kept])


def _dot(node: Node, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    attr: Dot = node.attr
    dtype = DTYPES[node.dtype].numpy
    wide = DTYPES[DTYPES[node.dtype].compute].numpy if DTYPES[node.dtype].kind == "f" else dtype

    def stacked(x: np.ndarray, batch: Sequence[int], contracted: Sequence[int], last: bool) -> np.ndarray:
        free = [d for d in range(x.ndim) if d not in batch and d not in contracted]
        order = (*batch, *free, *contracted) if last else (*batch, *contracted, *free)
        terms, count = prod(x.shape[d] for d in contracted), prod(x.shape[d] for d in free)
        shape = [x.shape[d] for d in batch] + ([count, terms] if last else [terms, count])
        return x.transpose(order).reshape(shape).astype(wide)

    left, right = stacked(lhs, attr.lhs_batch, attr.lhs_contract, True), stacked(rhs, attr.rhs_batch, attr.rhs_contract, False)
    return np.matmul(left, right).reshape(node.shape).astype(dtype)


def _cumulative(node: Node, x: np.ndarray) -> np.ndarray:
    attr = node.attr
    wide = _widened(x)
    ufunc = np.logaddexp if attr.kind == "logsumexp" else _UFUNCS[attr.kind]
    flipped = np.flip(wide, attr.axis) if attr.reverse else wide
    with np.errstate(all="ignore"):
        result = ufunc.accumulate(flipped, axis=attr.axis, dtype=wide.dtype)
    return (np.flip(result, attr.axis) if attr.reverse else result).astype(x.dtype)


def _argsort(node: Node, *keys: np.ndarray) -> np.ndarray:
    columns: list[np.ndarray] = []
    for key in reversed(keys):
        if _kind(key) == "f":
            wide = _widened(key)
            missing = np.isnan(wide)
            columns += [np.where(missing, 0, wide), missing]
        else:
            columns.append(key)
    return np.lexsort(columns, axis=node.attr.dim).astype(np.int32)


def _widened(x: np.ndarray) -> np.ndarray:
    """Floats in their compute type, others as they are."""
    info = next(d for d in DTYPES.values() if d.numpy == x.dtype)
    return x.astype(DTYPES[info.compute].numpy) if info.kind == "f" else x


def _kind(x: np.ndarray) -> str:
    return next(d.kind for d in DTYPES.values() if d.numpy == x.dtype)


def _loop(node: Node, *args: np.ndarray) -> list[np.ndarray]:
    attr: Loop = node.attr
    if attr.kind == "while":
        assert attr.condition is not None
        split, total = attr.condition_consts, attr.condition_consts + attr.consts
        carries = list(args[total:])
        while evaluate(attr.condition, *args[:split], *carries)[0]:
            carries = evaluate(attr.body, *args[split:total], *carries)
        return carries
    total = attr.consts + attr.carries
    consts, carries, stacked = args[: attr.consts], list(args[attr.consts : total]), args[total:]
    ys: list[list[np.ndarray]] = []
    for i in reversed(range(attr.length)) if attr.reverse else range(attr.length):
        results = evaluate(attr.body, *consts, *carries, *(x[i] for x in stacked))
        carries = results[: attr.carries]
        ys.append(results[attr.carries :])
    columns = [np.stack(column[::-1] if attr.reverse else column) for column in zip(*ys, strict=True)]
    return carries + columns


# -- elementwise -----------------------------------------------------------------------------------------------------
_NUMPY_MAPS: dict[str, Any] = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "max": np.maximum,
    "min": np.minimum, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
    "ne": np.not_equal, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
}  # fmt: skip
_LAX_NAMES = {
    "not": "bitwise_not",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "add_any": "add",
    "eq_to": "eq",
}


def _map(node: Node, *args: np.ndarray) -> Any:
    name, params = node.attr.primitive, dict(node.attr.params)
    dtype = DTYPES[node.dtype].numpy
    ufunc = _NUMPY_MAPS.get(name)
    with np.errstate(all="ignore"):
        if ufunc is not None:
            return np.asarray(ufunc(*args)).astype(dtype)
        if name == "select_n" and args[0].dtype == np.bool_:
            return np.where(args[0], args[2], args[1]).astype(dtype)
        if name == "convert_element_type" and args[0].dtype.kind in "biu":
            return args[0].astype(dtype)
        if name == "convert_element_type" and dtype.kind not in "biu":
            return args[0].astype(dtype)
    if name in ("convert_element_type", "bitcast_convert_type"):
        return getattr(lax, name)(args[0], dtype)
    if name == "round":
        return lax.round(args[0], lax.RoundingMethod(params["rounding_method"]))
    if name == "integer_pow":
        return lax.integer_pow(args[0], params["y"])
    if name == "reduce_precision":
        return lax.reduce_precision(args[0], params["exponent_bits"], params["mantissa_bits"])
    if name == "stop_gradient":
        return args[0]
    function = getattr(lax, _LAX_NAMES.get(name, name))
    with jax.default_device(jax.devices("cpu")[0]):
        return function(*args, **params)


_OPS: dict[str, Callable[..., Any]] = {
    "const": lambda node: node.attr.array,
    "iota": lambda node: np.broadcast_to(
        np.arange(node.shape[node.attr]).reshape([-1 if d == node.attr else 1 for d in range(len(node.shape))]), node.shape
    ).astype(DTYPES[node.dtype].numpy),
    "map": _map,
    "broadcast": _broadcast,
    "reshape": lambda node, x: x.reshape(node.shape),
    "transpose": lambda node, x: x.transpose(node.attr),
    "slice": _slice,
    "reverse": lambda node, x: np.flip(x, node.attr),
    "pad": _pad,
    "window": _window,
    "concat": lambda node, *parts: np.concatenate(parts, node.attr),
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter": _scatter,
    "reduce": _reduce,
    "dot": _dot,
    "cumulative": _cumulative,
    "argsort": _argsort,
    "loop": _loop,
    "pick": lambda node, results: results[node.attr],
}
