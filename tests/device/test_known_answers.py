"""Known answers: small inputs on which other compilers and back ends have been wrong, each with its whole kind of fault.

The right values, exact or computed in float64, are in tests/cases/known_answers.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

CASES = json.loads((Path(__file__).parents[1] / "cases" / "known_answers.json").read_text())
Jit = Callable[..., Any]


# matvec: rows lost in matrix-vector products.


def test_matvec(jit: Jit) -> None:
    case = CASES["matvec"]
    rows, columns = case["shape"]
    result = jit(jnp.matmul)(np.ones((rows, columns), np.float32), np.full(columns, 0.5, np.float32))
    np.testing.assert_array_equal(result, np.full(rows, case["expected"], np.float32))


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (1, 1024), (250, 1), (31, 257), (251, 1021), (1025, 63), (3, 65537), (0, 5), (5, 0)]
)
@pytest.mark.parametrize("form", ["matrix @ vector", "vector @ matrix", "dot of rows", "batch"])
def test_matvec_of_odd_shapes(jit: Jit, rng: np.random.Generator, rows: int, columns: int, form: str) -> None:
    # Small whole numbers: every partial sum is exact, so the order of summation is free and the answer is not.
    matrix = rng.integers(-4, 5, (rows, columns)).astype(np.float32)
    vector = rng.integers(-4, 5, columns).astype(np.float32)
    wide_matrix, wide_vector = matrix.astype(np.float64), vector.astype(np.float64)
    if form == "matrix @ vector":
        result, expected = jit(jnp.matmul)(matrix, vector), wide_matrix @ wide_vector
    elif form == "vector @ matrix":
        result, expected = jit(jnp.matmul)(vector, matrix.T.copy()), wide_vector @ wide_matrix.T
    elif form == "dot of rows":
        result, expected = jit(lambda m: (m * m).sum(axis=1))(matrix), (wide_matrix * wide_matrix).sum(axis=1)
    else:
        batch, vectors = np.stack([matrix, -matrix, matrix + 1]), np.stack([vector, vector, vector])
        result = jit(partial(jnp.einsum, "bij,bj->bi"))(batch, vectors)
        expected = np.einsum("bij,bj->bi", batch.astype(np.float64), vectors.astype(np.float64))
    np.testing.assert_array_equal(result, expected.astype(np.float32))


# permute_tail: last elements lost in a transpose of an odd shape.


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_permute_tail(jit: Jit, dtype: type) -> None:
    array = np.arange(27 * 31 * 31, dtype=dtype).reshape(27, 31, 31)
    result = np.asarray(jit(partial(jnp.transpose, axes=(1, 2, 0)))(array))
    assert result.ravel()[-3:].tolist() == CASES["permute_tail"]["tail"]


@pytest.mark.parametrize("shape", [(27, 31, 31), (1, 65537, 1), (3, 5, 7), (33, 1, 17), (2, 3, 129)])
@pytest.mark.parametrize("axes", list(permutations(range(3))))
def test_every_permutation_of_odd_shapes(jit: Jit, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    np.testing.assert_array_equal(jit(partial(jnp.transpose, axes=axes))(array), array.transpose(axes))
    # Also where the transpose has no kernel of its own but is part of another's index.
    np.testing.assert_array_equal(jit(lambda x: x.transpose(axes) * 2 + 1)(array), array.transpose(axes) * 2 + 1)


@pytest.mark.parametrize("dtype", [np.bool_, np.float16, jnp.bfloat16, np.uint32])
def test_permutation_of_every_storage_width(jit: Jit, rng: np.random.Generator, dtype: Any) -> None:
    array = rng.integers(0, 2, (27, 31, 31)).astype(dtype)
    np.testing.assert_array_equal(jit(partial(jnp.transpose, axes=(1, 2, 0)))(array), array.transpose(1, 2, 0))


# scatter_axis: scatter writes the wrong axis.


def test_scatter_axis(jit: Jit) -> None:
    case = CASES["scatter_axis"]
    x, r = (np.asarray(case[name], np.float32) for name in ("x", "r"))
    result = jit(lambda x, r: x.at[:, 0].set(x[:, 0] / r))(x, r)
    np.testing.assert_allclose(result, np.asarray(case["expected"], np.float32), rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("index", [0, 1, -1])
@pytest.mark.parametrize("method", ["set", "add", "multiply", "max"])
def test_scatter_to_one_index_of_each_axis(jit: Jit, rng: np.random.Generator, axis: int, index: int, method: str) -> None:
    array = rng.integers(-9, 10, (5, 3, 7)).astype(np.float32)
    where = tuple(index if dimension == axis else slice(None) for dimension in range(3))
    update = rng.integers(-9, 10, array[where].shape).astype(np.float32)
    expected = array.copy()
    combine = {"set": lambda old, new: new, "add": np.add, "multiply": np.multiply, "max": np.maximum}[method]
    expected[where] = combine(expected[where], update)
    result = jit(lambda x, u: getattr(x.at[where], method)(u))(array, update)
    np.testing.assert_array_equal(result, expected)


def test_scatter_to_a_computed_slice_leaves_the_argument_alone(jit: Jit) -> None:
    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    kept = array.copy()
    scatter = jit(lambda x, i: x.at[:, i].set(-x[:, i]))
    for column in range(3):
        expected = kept.copy()
        expected[:, column] *= -1
        np.testing.assert_array_equal(scatter(array, column), expected)
    np.testing.assert_array_equal(array, kept)


# norm_logsumexp_grad: the gradient through norm and logsumexp is NaN under fast math.


def norm_logsumexp(loc: jax.Array, scale: jax.Array) -> jax.Array:
    x = loc + scale * jnp.asarray([-1.5, 0.0])
    first = 0.5 * ((jnp.linalg.norm(x) - 2) / 0.4) ** 2
    second = -0.5 * ((x[0] + jnp.asarray([-2.0, 2.0])) / 0.6) ** 2
    return first - jax.scipy.special.logsumexp(second)


def test_norm_logsumexp_grad(jit: Jit) -> None:
    case = CASES["norm_logsumexp_grad"]
    loc, scale = (np.asarray(case[name], np.float32) for name in ("loc", "scale"))
    d_loc, d_scale = jit(jax.grad(norm_logsumexp, argnums=(0, 1)))(loc, scale)
    np.testing.assert_allclose(d_loc, case["d_loc"], rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(d_scale, case["d_scale"], rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("row", [[0.0, -200.0], [1e4, -1e4, 1e4], [-np.inf, 0.0, 3.0], [3e38, 3e38], [-3e38, -3e38], [0.0]])
def test_gradient_of_logsumexp_is_softmax(jit: Jit, row: list[float]) -> None:
    wide = np.asarray(row, np.float64)
    expected = np.exp(wide - wide.max())
    expected /= expected.sum()
    result = jit(jax.grad(jax.scipy.special.logsumexp))(np.asarray(row, np.float32))
    np.testing.assert_allclose(result, expected, rtol=2e-6, atol=1e-37)


@pytest.mark.parametrize("size", [1, 2, 31, 1025])
def test_gradient_of_norm_is_the_direction(jit: Jit, rng: np.random.Generator, size: int) -> None:
    vector = rng.normal(size=size).astype(np.float32)
    wide = vector.astype(np.float64)
    np.testing.assert_allclose(jit(jax.grad(jnp.linalg.norm))(vector), wide / np.sqrt((wide**2).sum()), rtol=4e-6)


# scatter_add_repeat: updates lost when indices repeat.


def test_scatter_add_repeat(jit: Jit) -> None:
    case = CASES["scatter_add_repeat"]
    index, source = np.asarray(case["idx"], np.int32), np.asarray(case["src"], np.float32)
    columns = np.arange(index.shape[1])
    result = jit(lambda i, s: jnp.zeros((3, 3), jnp.float32).at[i, columns].add(s))(index, source)
    np.testing.assert_array_equal(result, np.asarray(case["expected"], np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint32])
@pytest.mark.parametrize(("updates", "rows", "width"), [(1, 1, 1), (257, 1, 3), (1000, 7, 5), (4099, 3, 1), (65, 64, 33)])
@pytest.mark.parametrize("method", ["add", "multiply", "max", "min"])
def test_scatter_with_many_repeats(
    jit: Jit, rng: np.random.Generator, dtype: type, updates: int, rows: int, width: int, method: str
) -> None:
    index = rng.integers(0, rows, updates).astype(np.int32)
    # Products of many numbers stay exact when each is 1, and negative 1 where there are any.
    low, high = ((1, 2) if dtype == np.uint32 else (-1, 2)) if method == "multiply" else (0, 100)
    source = rng.integers(low, high, (updates, width)).astype(dtype)
    start = rng.integers(0, 100, (rows, width)).astype(dtype)
    expected = start.copy()
    function = {"add": np.add, "multiply": np.multiply, "max": np.maximum, "min": np.minimum}[method]
    function.at(expected, index, source)
    result = jit(lambda x, i, s: getattr(x.at[i], method)(s))(start, index, source)
    np.testing.assert_array_equal(result, expected)


def test_gradient_of_an_embedding_adds_up_repeats(jit: Jit, rng: np.random.Generator) -> None:
    tokens = rng.integers(0, 5, (3, 67)).astype(np.int32)
    table = rng.normal(size=(11, 13)).astype(np.float32)
    cotangent = rng.integers(-3, 4, (3, 67, 13)).astype(np.float32)
    expected = np.zeros_like(table)
    np.add.at(expected, tokens, cotangent)
    result = jit(jax.grad(lambda w: (w[tokens] * cotangent).sum()))(table)
    np.testing.assert_array_equal(result, expected)


# tanh_extreme: tanh or gelu of a large argument is NaN.


def test_tanh_extreme(jit: Jit) -> None:
    case = CASES["tanh_extreme"]
    functions = {
        "tanh": jnp.tanh,
        "gelu_tanh": partial(jax.nn.gelu, approximate=True),
        "softcap50": lambda x: 50 * jnp.tanh(x / 50),
    }
    for name, function in functions.items():
        arguments, expected = np.asarray(case[name], np.float32).T
        np.testing.assert_array_equal(np.asarray(jit(function)(arguments)) + 0.0, expected, err_msg=name)


EXTREMES = np.asarray(
    [0.0, -0.0, 1e-30, -1e-30, 20.0, -20.0, 88.0, -88.0, 89.0, 1e4, -1e4, 3e38, -3e38, np.inf, -np.inf], np.float32
)
# Value and slope at plus and minus infinity of functions that saturate or become linear.
SATURATING = {
    "tanh": (jnp.tanh, np.tanh),
    "sigmoid": (jax.nn.sigmoid, lambda x: np.exp(-np.logaddexp(0.0, -x))),
    "erf": (jax.lax.erf, None),
    "softplus": (jax.nn.softplus, lambda x: np.logaddexp(0.0, x)),
    "softsign": (lambda x: 50 * jnp.tanh(x / 50), lambda x: 50 * np.tanh(x / 50)),
    "arctan": (jnp.arctan, np.arctan),
}


@pytest.mark.parametrize("name", SATURATING)
def test_saturating_functions_of_extreme_arguments(jit: Jit, name: str) -> None:
    function, reference = SATURATING[name]
    result = np.asarray(jit(function)(EXTREMES))
    expected = np.sign(EXTREMES) if reference is None else reference(EXTREMES.astype(np.float64)).astype(np.float32)
    # erf of a number as small as 1e-30 is that number times 2 / sqrt(pi), not its sign.
    compared = np.abs(EXTREMES) >= 20 if reference is None else np.ones(EXTREMES.shape, bool)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(result[compared], expected[compared], rtol=2e-6, atol=1e-37)


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "softplus", "softsign", "arctan", "gelu", "silu"])
def test_slopes_of_extreme_arguments_are_finite(jit: Jit, name: str) -> None:
    functions = {
        **{key: pair[0] for key, pair in SATURATING.items()},
        "gelu": partial(jax.nn.gelu, approximate=True),
        "silu": jax.nn.silu,
    }
    arguments = EXTREMES[np.abs(EXTREMES) <= 1e4]
    slopes = np.asarray(jit(jax.vmap(jax.grad(functions[name])))(arguments))
    assert np.isfinite(slopes).all(), dict(zip(arguments.tolist(), slopes.tolist(), strict=True))
