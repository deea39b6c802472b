"""Which harnesses there are and which of them a run takes; used by parent and worker alike."""

from __future__ import annotations

import collections
import hashlib
import importlib
import importlib.util
import itertools
import json
import os
import re
import sys
import zlib

DTYPE_ALIASES = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f64": "float64",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "c64": "complex64",
    "c128": "complex128",
}
CORE_DTYPES = ("float32", "int32", "uint32", "bool", "bfloat16", "float16")
SMALL_INT_DTYPES = ("int8", "uint8", "int16", "uint16")

# Decompositions and solvers: LAPACK on JAX's CPU backend, so nothing a kernel
# compiler has to own.
LINALG_GROUPS = frozenset(
    {"cholesky", "custom_linear_solve", "eig", "eigh", "lu", "qr", "svd", "triangular_solve", "tridiagonal_solve"}
)
# Rarely needed numerics that a first release may leave out.
EXOTIC_GROUPS = frozenset(
    {
        "approx_top_k",
        "fft",
        "rng_bit_generator",
        "igamma",
        "igammac",
        "regularized_incomplete_beta",
        "bessel_i0e",
        "bessel_i1e",
        "random_gamma",
        "select_and_gather_add",
        "complex",
        "conj",
        "real",
        "imag",
    }
)


# Results defined only up to sign or phase: compare magnitudes, loosely.
def load_harness_module(source: str):
    """The harness module: from the installed wheel, or from a checkout path."""
    name = "jax._src.internal_test_util.test_harnesses"
    rel = "jax/_src/internal_test_util/test_harnesses.py"
    argv, sys.argv = sys.argv, sys.argv[:1]  # the module parses absl flags
    # A few harnesses draw inputs from the global generator while the module
    # loads: seed it, or they differ between workers, runs and baselines.
    import numpy as np

    np.random.seed(0)
    try:
        if source in ("auto", "wheel"):
            try:
                return importlib.import_module(name), "wheel"
            except ModuleNotFoundError as e:
                raise SystemExit(f"the installed jax ships no test harnesses ({e}); give a checkout with --source PATH") from e
        path = source
        if os.path.isdir(path):
            path = os.path.join(path, rel)
        if not os.path.isfile(path):
            raise SystemExit(f"no harness file at {path}")
        spec = importlib.util.spec_from_file_location("checkout_test_harnesses", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
        except (ImportError, AttributeError) as e:
            raise SystemExit(
                f"{path} does not load against the installed jax: {e}. Take a checkout of the installed version's tag."
            ) from e
        return module, path
    finally:
        sys.argv = argv


def setup_jax(x64: bool):
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax

    jax.config.update("jax_enable_x64", x64)
    return jax


def dtype_name(harness) -> str:
    import numpy as np

    return np.dtype(harness.dtype).name if harness.dtype is not None else "none"


def in_tier(harness, tier: str) -> bool:
    """core: the dtypes and groups a neural-network compiler must have."""
    if tier == "all":
        return True
    dt, g = dtype_name(harness), harness.group_name
    if g in LINALG_GROUPS:
        return tier == "linalg"
    if tier == "linalg":
        return False
    exotic = g in EXOTIC_GROUPS or dt.startswith("complex")
    small = dt in SMALL_INT_DTYPES
    if tier == "core":
        return not exotic and not small
    if tier == "smallint":
        return small and not exotic
    if tier == "exotic":
        return exotic
    raise SystemExit(f"unknown tier {tier}")


def select_harnesses(harnesses, a):
    names = {DTYPE_ALIASES.get(d, d) for d in a.dtype.split(",")} if a.dtype else None
    groups = set(a.group.split(",")) if a.group else None
    keep = re.compile(a.filter) if a.filter else None
    drop = re.compile(a.exclude) if a.exclude else None
    out = [
        h
        for h in harnesses
        if (names is None or dtype_name(h) in names)
        and (groups is None or h.group_name in groups)
        and (keep is None or keep.search(h.fullname))
        and (drop is None or not drop.search(h.fullname))
        and in_tier(h, a.tier)
    ]
    if a.shard:
        i, n = (int(x) for x in a.shard.split("/"))
        if not 1 <= i <= n:
            raise SystemExit("--shard i/n needs 1 <= i <= n")
        # By hash, not position: a shard keeps its members when --filter changes.
        out = [h for h in out if zlib.crc32(h.fullname.encode()) % n == i - 1]
    if a.sample:
        out.sort(key=lambda h: hashlib.sha1(h.fullname.encode()).digest())
        out = out[: a.sample]
    return spread(out, a.spread) if a.spread else out


def spread(harnesses, count):
    """A fixed `count` of the harnesses that visits every group in turn, so that the large ones don't crowd it."""
    by_group = collections.defaultdict(list)
    for h in sorted(harnesses, key=lambda h: hashlib.sha1(h.fullname.encode()).digest()):
        by_group[h.group_name].append(h)
    rounds = itertools.zip_longest(*(by_group[group] for group in sorted(by_group)))
    return [h for one_of_each in rounds for h in one_of_each if h is not None][:count]


def primitives_of(jaxpr, into=None):
    """Names of every primitive in a jaxpr, inner jaxprs included."""
    into = set() if into is None else into
    for eqn in jaxpr.eqns:
        into.add(eqn.primitive.name)
        for value in eqn.params.values():
            for v in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(v, "jaxpr", v)
                if hasattr(inner, "eqns"):
                    primitives_of(inner, into)
    return into


def list_primitives(a, selected):
    import numpy as np

    jax = setup_jax(a.x64)
    use, per_dtype, untraced = collections.Counter(), {}, 0
    for h in selected:
        if not h.filter("cpu"):
            continue
        args = h.dyn_args_maker(np.random.RandomState(zlib.adler32(h.fullname.encode())))
        t = transformed(h.dyn_fun, args, a.transform)
        if t is None:
            continue
        try:
            found = primitives_of(jax.make_jaxpr(t[0])(*t[1]).jaxpr)
        except Exception:
            untraced += 1
            continue
        for p in found:
            use[p] += 1
            per_dtype.setdefault(p, collections.Counter())[dtype_name(h)] += 1
    for p, n in use.most_common():
        print(f"{p:32s} {n:6d}  " + " ".join(f"{k}:{v}" for k, v in per_dtype[p].most_common()))
    print(f"# {len(use)} primitives; {untraced} harnesses did not trace")
    if a.json:
        with open(a.json, "w") as f:
            json.dump({p: dict(total=n, **per_dtype[p]) for p, n in use.most_common()}, f, indent=1)


def is_float(x):
    import jax
    import numpy as np

    dtype = x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype
    return jax.dtypes.issubdtype(dtype, np.inexact)


def transformed(fun, args, kind):
    """``fun`` under a transformation, as (function, arguments); None if moot."""
    import jax
    import jax.numpy as jnp

    if kind == "none":
        return fun, args
    if kind == "vmap":
        if not args:
            return None
        return jax.vmap(fun), [jax.numpy.stack([jnp.asarray(x)] * 3) for x in args]
    which = [i for i, x in enumerate(args) if is_float(x)]
    if not which:
        return None

    def of_floats(*fs, rest):
        full = list(rest)
        for i, f in zip(which, fs, strict=True):
            full[i] = f
        leaves = jax.tree.leaves(fun(*full))
        return [o for o in leaves if is_float(o)]

    def vjp(*full):
        outs, pull = jax.vjp(lambda *fs: of_floats(*fs, rest=full), *[full[i] for i in which])
        if not outs:
            return outs
        # A ramp, not ones: a cotangent of ones hides permutation mistakes.
        cts = [(1 + jnp.arange(o.size).reshape(o.shape) % 7).astype(o.dtype) / 4 for o in outs]
        return outs, pull(cts)

    def jvp(*full):
        fs = [full[i] for i in which]
        ts = [(1 + jnp.arange(f.size).reshape(f.shape) % 5).astype(f.dtype) / 4 for f in fs]
        return jax.jvp(lambda *xs: of_floats(*xs, rest=full), fs, ts)

    return {"vjp": vjp, "jvp": jvp}[kind], args
