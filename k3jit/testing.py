"""For tests of functions compiled by k3jit: comparison with JAX, gradient checks, and random arrays and programs.

hypothesis is imported by `arrays` and `programs` only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .api import jit

__all__ = ["Example", "arrays", "assert_matches_jax", "check_grads", "programs"]

# One rounding of the type, times the room that reordered sums and own elementary functions need.
TOLERANCES: dict[str, float] = {"float64": 1e-13, "float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}


def assert_matches_jax(
    fun: Callable[..., Any],
    *args: Any,
    rtol: float | None = None,
    atol: float | None = None,
    transforms: Sequence[str] = ("none", "vjp", "jvp", "vmap"),
) -> None:
    """Assert that `k3jit.jit(fun)` computes what `jax.jit(fun)` does on the CPU, itself and transformed.

    Args:
        args: pytrees of arrays. "vjp" and "jvp" differentiate in the floating-point leaves and are skipped without any; "vmap"
            maps over a new leading axis of size 3.
        rtol, atol: default by dtype of each result; atol is times the largest value there.
        transforms: of "none", "vjp", "jvp", "vmap".

    Raises:
        AssertionError: names the transformation, the result and the largest difference.
    """
    leaves, tree = jax.tree.flatten(args)
    leaves = [np.asarray(x) if not isinstance(x, jax.Array) else x for x in leaves]
    moving = [i for i, x in enumerate(leaves) if jnp.issubdtype(x.dtype, jnp.floating)]

    def partial(*values: Any) -> list[Any]:
        full = list(leaves)
        for i, value in zip(moving, values, strict=True):
            full[i] = value
        results = jax.tree.leaves(fun(*jax.tree.unflatten(tree, full)))
        return [r for r in map(jnp.asarray, results) if jnp.issubdtype(r.dtype, jnp.floating)]

    chosen = [leaves[i] for i in moving]
    for transform in transforms:
        if transform in ("vjp", "jvp") and not (moving and jax.eval_shape(partial, *chosen)):
            continue
        target, arguments = _transformed(transform, fun, partial, args, chosen)
        got, want = jit(target)(*arguments), jax.jit(target)(*arguments)
        _compare(got, want, rtol, atol, transform)


def _transformed(
    transform: str, fun: Callable[..., Any], partial: Callable[..., Any], args: tuple[Any, ...], chosen: list[Any]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    if transform == "none":
        return fun, args
    if transform == "jvp":
        return lambda xs, ts: jax.jvp(partial, tuple(xs), tuple(ts)), (chosen, [_wave(x.shape, x.dtype, 1) for x in chosen])
    if transform == "vjp":
        shapes = jax.eval_shape(partial, *chosen)
        cotangents = [_wave(s.shape, s.dtype, 2) for s in shapes]
        return lambda xs, cts: jax.vjp(partial, *xs)[1](cts), (chosen, cotangents)
    if transform == "vmap":
        return jax.vmap(fun), jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * 3), args)
    raise ValueError(f"no transform {transform!r}; there are none, vjp, jvp, vmap")


def _wave(shape: tuple[int, ...], dtype: Any, seed: int) -> np.ndarray:
    """Fixed values between -1 and 1, none of them special."""
    return np.cos(np.arange(np.prod(shape, dtype=int)) * 1.7 + seed).reshape(shape).astype(dtype)


def _compare(got: Any, want: Any, rtol: float | None, atol: float | None, what: str) -> None:
    got_leaves, want_leaves = jax.tree.leaves(got), jax.tree.leaves(want)
    got_tree, want_tree = str(jax.tree.structure(got)), str(jax.tree.structure(want))
    assert got_tree == want_tree, f"{what}: structure {got_tree} instead of {want_tree}"
    for number, (a, b) in enumerate(zip(got_leaves, want_leaves, strict=True)):
        name = f"{what}, result {number}"
        assert (a.shape, a.dtype) == (b.shape, b.dtype), f"{name}: {a.dtype}{a.shape} instead of {b.dtype}{b.shape}"
        if jnp.issubdtype(a.dtype, jax.dtypes.extended):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        host_a, host_b = np.asarray(a), np.asarray(b)
        if not jnp.issubdtype(host_a.dtype, jnp.floating):
            np.testing.assert_array_equal(host_a, host_b, err_msg=name)
            continue
        default = TOLERANCES.get(host_a.dtype.name, 1e-6)
        wide_a, wide_b = host_a.astype(np.float64), host_b.astype(np.float64)
        largest = float(np.max(np.abs(wide_b[np.isfinite(wide_b)]), initial=0.0))
        allowed = (default if atol is None else atol) * max(largest, 1e-30)
        np.testing.assert_allclose(wide_a, wide_b, rtol=default if rtol is None else rtol, atol=allowed, err_msg=name)


def check_grads(
    fun: Callable[..., Any], args: Sequence[Any], order: int = 2, *, eps: float = 1e-2, tolerance: float = 1e-2
) -> None:
    """Compare automatic with numerical directional derivatives of `fun(*args)`, all evaluated on the device.

    Args:
        args: arrays of floating-point type.
        order: how many derivatives: 1 the first, 2 also the derivative of the directional derivative.
        eps: step of the central difference.
        tolerance: relative to the largest derivative, floored by what float32 rounding makes of the difference quotient.

    Raises:
        AssertionError: names the order that differs.
    """
    points = [jnp.asarray(a) for a in args]
    directions = [jnp.asarray(_wave(p.shape, p.dtype, 3 + i)) for i, p in enumerate(points)]

    def flat(*xs: Any) -> list[Any]:
        return jax.tree.leaves(fun(*xs))

    function: Callable[..., Any] = flat
    for number in range(1, order + 1):
        below = function

        def derivative(*xs: Any, below: Callable[..., Any] = below) -> list[Any]:
            return jax.jvp(below, xs, tuple(directions))[1]

        evaluate = jit(below)
        ahead = evaluate(*[p + eps * d for p, d in zip(points, directions, strict=True)])
        behind = evaluate(*[p - eps * d for p, d in zip(points, directions, strict=True)])
        forward = jit(derivative)(*points)
        for result, (a, b, exact) in enumerate(zip(ahead, behind, forward, strict=True)):
            numerical = (np.asarray(a, np.float64) - np.asarray(b, np.float64)) / (2 * eps)
            size = max(float(np.max(np.abs(numerical), initial=0.0)), 1.0)
            error = float(np.max(np.abs(numerical - np.asarray(exact, np.float64)), initial=0.0))
            assert error <= tolerance * size, (
                f"order {number}, result {result}: automatic and numerical derivative differ by {error:.3g} of {size:.3g}"
            )
        function = derivative
    # Reverse mode has to agree with forward mode: <ct, J t> = <J^T ct, t>.
    shapes = jax.eval_shape(flat, *points)
    cotangents = [_wave(s.shape, s.dtype, 9 + i) for i, s in enumerate(shapes)]
    pushed = jit(lambda xs, ts: jax.jvp(flat, tuple(xs), tuple(ts))[1])(points, directions)
    pulled = jit(lambda xs, cts: jax.vjp(flat, *xs)[1](cts))(points, cotangents)
    left = sum(float(np.vdot(c.astype(np.float64), np.asarray(t, np.float64))) for c, t in zip(cotangents, pushed, strict=True))
    right = sum(
        float(np.vdot(np.asarray(g, np.float64), np.asarray(d, np.float64))) for g, d in zip(pulled, directions, strict=True)
    )
    assert abs(left - right) <= tolerance * max(abs(left), abs(right), 1.0), (
        f"forward and reverse mode differ: {left} and {right}"
    )


_SPECIALS = (0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 0.5)


def arrays(dtype: Any, shape: Any, *, specials: bool = True) -> Any:
    """A hypothesis strategy of NumPy arrays.

    Args:
        dtype: a JAX dtype; floats stay free of subnormals, which devices may flush.
        shape: a shape, or a strategy of shapes.
        specials: mix in infinities, NaN, both zeros and the largest values of the type.
    """
    from hypothesis import strategies as st

    kind = jnp.dtype(dtype)
    shapes = st.just(tuple(shape)) if isinstance(shape, list | tuple) else shape
    if kind == np.bool_:
        elements: Any = st.booleans()
    elif jnp.issubdtype(kind, jnp.integer):
        info = jnp.iinfo(kind)
        low, high = (int(info.min), int(info.max)) if specials else (max(int(info.min), -100), min(int(info.max), 100))
        elements = st.integers(low, high)
    else:
        smallest = float(jnp.finfo(kind).tiny)
        elements = st.floats(-4.0, 4.0, width=64 if kind == np.float64 else 32).map(lambda x: 0.0 if abs(x) < smallest else x)
        if specials:
            largest = float(jnp.finfo(kind).max)
            elements = st.one_of(elements, st.sampled_from((*_SPECIALS, largest, -largest)))

    def fill(chosen: tuple[int, ...]) -> Any:
        count = int(np.prod(chosen, dtype=int))
        # A short random list, repeated: large arrays stay cheap to draw and to shrink.
        return st.lists(elements, min_size=1, max_size=max(1, min(count, 24))).map(
            lambda values: np.resize(np.asarray(values, kind if kind.kind in "biu" else np.float64), chosen).astype(kind)
        )

    return shapes.flatmap(fill)


@dataclass
class Example:
    """A random program with inputs: `fun(*args)`; `text` is what it computes."""

    fun: Callable[..., Any]
    args: tuple[np.ndarray, ...]
    text: str

    def __repr__(self) -> str:
        return f"Example({self.text}; args {[f'{a.dtype}{list(a.shape)}' for a in self.args]})"


# All continuous: a difference of one rounding must not become a jump.
_UNARY: dict[str, Callable[[Any], Any]] = {
    "tanh": jnp.tanh,
    "neg": jnp.negative,
    "abs": jnp.abs,
    "sigmoid": jax.nn.sigmoid,
    "square": jnp.square,
    "sin": jnp.sin,
    "relu": jax.nn.relu,
    "clip": lambda x: jnp.clip(x, -1.0, 1.0),
    "exp": lambda x: jnp.exp(-jnp.abs(x)),
    "flip": lambda x: jnp.flip(x, 0) if x.ndim else x,
    "transpose": jnp.transpose,
    "ravel": jnp.ravel,
    "new_axis": lambda x: x[None] if x.ndim < 3 else x,
    "cumsum": lambda x: jnp.cumsum(x, axis=-1) if x.ndim else x,
    "softmax": lambda x: jax.nn.softmax(x, axis=-1) if x.ndim and x.shape[-1] else x,
    "sum_last": lambda x: x.sum(-1) if x.ndim else x,
    "mean_keep": lambda x: x - x.mean(-1, keepdims=True) if x.ndim and x.shape[-1] else x,
    "max_first": lambda x: x.max(0) if x.ndim and x.shape[0] else x,
    "first_half": lambda x: x[: (x.shape[0] + 1) // 2] if x.ndim else x,
    "sort": lambda x: jnp.sort(x, axis=-1) if x.ndim else x,
    "scan": lambda x: jax.lax.scan(lambda c, row: (c * 0.5 + row, c), jnp.zeros(x.shape[1:], x.dtype), x)[1] if x.ndim else x,
    "pad": lambda x: jnp.pad(x, [(1, 0)] * x.ndim) if x.ndim and x.size < 4096 else x,
}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "max": jnp.maximum,
    "where": lambda a, b: jnp.where(a > b, a, b),
    "logaddexp": jnp.logaddexp,
}


def programs(max_ops: int = 12, dtype: Any = jnp.float32) -> Any:
    """A hypothesis strategy of well-typed random JAX programs with their inputs (`Example`).

    Args:
        max_ops: most operations in one program.
        dtype: type of the inputs; float64 has to be drawn under x64.
    """
    from hypothesis import strategies as st

    @st.composite
    def example(draw: Any) -> Example:
        count = draw(st.integers(1, 3))
        shapes = st.lists(st.sampled_from([1, 2, 3, 5, 8, 17]), min_size=0, max_size=3).map(tuple)
        args = tuple(draw(arrays(dtype, draw(shapes), specials=False)) for _ in range(count))
        known = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args]
        steps: list[tuple[str, tuple[int, ...]]] = []
        for _ in range(draw(st.integers(1, max_ops))):
            first = draw(st.integers(0, len(known) - 1))
            partners = [i for i, other in enumerate(known) if _broadcastable(known[first].shape, other.shape)]
            step: tuple[str, tuple[int, ...]]
            if draw(st.booleans()):
                step = (draw(st.sampled_from(sorted(_UNARY))), (first,))
            else:
                step = (draw(st.sampled_from(sorted(_BINARY))), (first, draw(st.sampled_from(partners))))
            steps.append(step)
            known.append(jax.eval_shape(lambda *xs, step=step: _apply(step[0], xs), *[known[i] for i in step[1]]))

        def fun(*inputs: Any) -> Any:
            values = list(inputs)
            for name, where in steps:
                values.append(_apply(name, [values[i] for i in where]))
            return values[len(inputs) :][-2:]

        text = "; ".join(f"v{count + n} = {name}({', '.join(f'v{i}' for i in where)})" for n, (name, where) in enumerate(steps))
        return Example(fun, args, text)

    return example()


def _apply(name: str, values: Sequence[Any]) -> Any:
    return _UNARY[name](values[0]) if name in _UNARY else _BINARY[name](*values)


def _broadcastable(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))
