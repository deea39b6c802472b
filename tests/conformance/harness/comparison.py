"""Compares results with the reference: structure, dtype, shape, then values by JAX's tolerances or exactly."""

from __future__ import annotations

# Results defined only up to sign or phase: compare magnitudes, loosely.
PHASE_FREE_GROUPS = frozenset({"eig", "eigh", "svd", "qr"})
# Summation order is free: the allowed error scales with the result's size.
ACCUMULATING_GROUPS = frozenset(
    {
        "conv_general_dilated",
        "cumlogsumexp",
        "cumprod",
        "cumsum",
        "custom_linear_solve",
        "dot_general",
        "fft",
        "reduce",
        "reduce_prod",
        "reduce_sum",
        "reduce_window_add",
        "reduce_window_mul",
        "scatter_add",
        "scatter_mul",
        "select_and_scatter_add",
        "cholesky",
        "lu",
        "triangular_solve",
        "tridiagonal_solve",
    }
)
# Data is moved, selected or rounded, never computed with: the answer is exact.
# JAX's tolerance would not do: its bfloat16 atol (1e-2) is above the inputs
# (about 1e-3) of some pad harnesses, so that a jit returning zeros passes.
EXACT_GROUPS = frozenset(
    {
        "abs",
        "argmax",
        "argmin",
        "bitcast_convert_type",
        "broadcast_in_dim",
        "ceil",
        "clamp",
        "concatenate",
        "convert_element_type",
        "cummax",
        "cummin",
        "device_put",
        "dynamic_slice",
        "dynamic_update_slice",
        "floor",
        "gather",
        "iota",
        "max",
        "min",
        "neg",
        "nextafter",
        "pad",
        "reduce_max",
        "reduce_min",
        "reduce_precision",
        "reduce_window_max",
        "reduce_window_min",
        "reshape",
        "rev",
        "round",
        "scatter",
        "scatter_max",
        "scatter_min",
        "select_n",
        "sign",
        "slice",
        "sort",
        "squeeze",
        "stop_gradient",
        "top_k",
        "transpose",
    }
)
# Where JAX's own tests of these harnesses widen the default.
GROUP_TOLERANCE = {
    "conv_general_dilated": {"float32": 1e-4},
    "fft": {"float32": 1e-5, "complex64": 1e-5},
}


class Mismatch(Exception):
    def __init__(self, kind, message, **stats):
        super().__init__(message)
        self.kind, self.stats = kind, stats


def to_host(leaf):
    """A leaf as (numpy array, dtype name); typed PRNG keys as their key data."""
    import jax
    import numpy as np

    dtype = getattr(leaf, "dtype", None)
    if dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf)), str(dtype)
    arr = np.asarray(leaf)
    return arr, str(dtype if dtype is not None else arr.dtype)


def build_tolerances():
    """JAX's default tolerance per dtype, and its per-op exceptions."""
    import numpy as np
    from jax._src import public_test_util

    default = {
        np.dtype(k).name: float(v) for k, v in public_test_util.default_tolerance().items() if np.dtype(k).name != "void"
    }
    per_op = {}
    try:
        from jax._src.internal_test_util import lax_test_util

        for rec in lax_test_util.lax_ops():
            if isinstance(rec.tol, dict):
                slot = per_op.setdefault(rec.op, {})
                for k, v in rec.tol.items():
                    slot[np.dtype(k).name] = max(float(v), slot.get(np.dtype(k).name, 0))
    except Exception:  # the op table is a bonus, not a need
        per_op = {}
    return default, per_op


class Comparer:
    def __init__(self, tol_scale, exact=True, transform="none"):
        self.default, self.per_op = build_tolerances()
        self.scale, self.exact = tol_scale, exact
        self.transform = transform

    def tolerance(self, group, dtype):
        t = self.default.get(dtype, 0.0)
        t = max(t, self.per_op.get(group, {}).get(dtype, 0.0), GROUP_TOLERANCE.get(group, {}).get(dtype, 0.0))
        if group in PHASE_FREE_GROUPS and t:
            t = max(t, 1e-3)
        return t * self.scale

    def leaf(self, path, got, want, harness, floor):
        import numpy as np

        g, gdt = to_host(got)
        w, wdt = to_host(want)
        if gdt != wdt:
            raise Mismatch("dtype", f"{path}: dtype {gdt}, expected {wdt}")
        if g.shape != w.shape:
            raise Mismatch("shape", f"{path}: shape {g.shape}, expected {w.shape}")
        group = harness.group_name
        tol = self.tolerance(group, w.dtype.name)
        if self.exact and group in EXACT_GROUPS:
            tol = 0.0
        if tol:
            # An op computed from narrower inputs cannot be held to the output type.
            tol = max(tol, floor)
        if not tol:
            bad = (g != w) & ~((g != g) & (w != w))  # NaN agrees with NaN
            if bad.any():
                raise Mismatch("value", f"{path}: {self._where(bad, g, w)}", wrong=int(bad.sum()), size=int(bad.size))
            return 0.0, 0.0
        wide = np.complex128 if w.dtype.kind == "c" else np.float64
        g, w = g.astype(wide), w.astype(wide)
        if group in PHASE_FREE_GROUPS:
            g, w = np.abs(g), np.abs(w)
        if g.size == 0:
            return 0.0, 0.0
        finite = np.isfinite(w)
        special = np.where(finite, False, np.where(np.isnan(w), ~np.isnan(g), g != w))
        with np.errstate(all="ignore"):
            diff = np.where(finite, np.abs(g - w), 0.0)
            diff = np.where(np.isnan(diff), np.inf, diff)
            mag = np.where(finite, np.abs(w), 0.0)
            atol = tol
            if group in ACCUMULATING_GROUPS:
                atol = tol * max(1.0, float(mag.max(initial=0.0)))
            bad = special | (diff > atol + tol * mag)
            rel = float(np.max(diff / np.maximum(mag, 1e-30), initial=0.0))
        worst = float(diff.max(initial=0.0))
        if bad.any():
            kind = "nonfinite" if special.any() else "value"
            raise Mismatch(
                kind,
                f"{path}: {self._where(bad, g, w)}; tol {tol:g}",
                wrong=int(bad.sum()),
                size=int(bad.size),
                max_abs=worst,
                max_rel=rel,
                needed_scale=float(np.max(diff / (atol + tol * mag))) * self.scale,
            )
        return worst, rel

    @staticmethod
    def _where(bad, g, w):
        import numpy as np

        n = int(bad.sum())
        at = tuple(int(i) for i in np.argwhere(bad)[0]) if bad.ndim else ()
        return f"{n} of {bad.size} elements differ, first at {at}: got {g[at]!r}, expected {w[at]!r}"

    def tree(self, got, want, harness, floor):
        import jax

        g_leaves, g_def = jax.tree_util.tree_flatten_with_path(got)
        w_leaves, w_def = jax.tree_util.tree_flatten_with_path(want)
        if g_def != w_def:
            raise Mismatch("structure", f"tree {g_def}, expected {w_def}")
        if harness.group_name == "sort" and not harness.params.get("is_stable", True) and self.transform in ("none", "vmap"):
            axis = harness.params["dimension"] + (self.transform == "vmap")
            g_leaves, w_leaves = (settle_ties(leaves, axis, harness.params["num_keys"]) for leaves in (g_leaves, w_leaves))
        worst = (0.0, 0.0)
        for (path, g), (_, w) in zip(g_leaves, w_leaves, strict=True):
            where = "out" + jax.tree_util.keystr(path)
            r = self.leaf(where, g, w, harness, floor)
            worst = max(worst[0], r[0]), max(worst[1], r[1])
        return worst


def settle_ties(leaves, axis, num_keys):
    """Results of a sort that need not be stable, with each run of equal keys in the order of what goes with them.

    Keys stay where they are: only operands behind the keys move, and only among equal keys.
    """
    import numpy as np

    arrays = [np.asarray(leaf) for _, leaf in leaves]
    keys = arrays[:num_keys]
    new_run = np.zeros(arrays[0].shape, np.int64)
    later = tuple(slice(1, None) if d == axis else slice(None) for d in range(new_run.ndim))
    for key in keys:
        new_run[later] |= np.diff(key, axis=axis) != 0
    run = np.cumsum(new_run, axis=axis)
    order = np.lexsort((*reversed(arrays), run), axis=axis)
    return [(path, np.take_along_axis(array, order, axis)) for (path, _), array in zip(leaves, arrays, strict=True)]
