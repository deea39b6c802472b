"""Compare a function's graph, evaluated in NumPy, with jax.jit on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from k3jit.lowering.desugar import build_graph
from k3jit.lowering.graph import Graph
from k3jit.lowering.reference import evaluate

from k3jit import _jax_compat


def plain(leaf: Any) -> np.ndarray:
    """An array as NumPy; typed keys as their words."""
    array = jnp.asarray(leaf)
    return np.asarray(jax.random.key_data(array) if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) else array)


def check(function: Callable[..., Any], *args: Any, tolerance: float = 0.0) -> Graph:
    """Assert equal results (shape, dtype, value; NaN equals NaN) and return the graph."""
    graph = build_graph(_jax_compat.expanded(jax.make_jaxpr(function)(*args)))
    got = evaluate(graph, *(plain(leaf) for leaf in jax.tree.leaves(args)))
    want = [plain(leaf) for leaf in jax.tree.leaves(jax.jit(function)(*args))]
    assert len(got) == len(want)
    for ours, theirs in zip(got, want, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        if ours.dtype.itemsize == 2 and ours.dtype.kind not in "iu":
            ours, theirs = ours.astype(np.float32), theirs.astype(np.float32)
        if tolerance:
            np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(ours, theirs)
    return graph


def ops(graph: Graph) -> list[str]:
    """Operation names of a graph's nodes, in order."""
    return [node.op for node in graph.nodes]
