"""The process that runs harnesses one by one, named on its standard input, and answers in JSON lines."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import pickle
import sys
import time
import traceback
import zlib

from .comparison import Comparer, Mismatch, to_host
from .selection import dtype_name, is_float, load_harness_module, primitives_of, setup_jax, transformed


def resolve(spec: str):
    module, _, attr = spec.partition(":")
    obj = importlib.import_module(module)
    for part in attr.split("."):
        obj = getattr(obj, part)
    return obj


class Worker:
    def __init__(self, a):
        self.a = a
        self.jax = setup_jax(a.x64)
        th, _ = load_harness_module(a.source)
        self.by_name = {h.fullname: h for h in th.all_harnesses}
        for p in reversed(a.path):
            sys.path.insert(0, p)
        self.jit = resolve(a.jit)
        self.jit_kwargs = json.loads(a.jit_kwargs)
        self.unsupported = tuple(resolve(s) for s in a.unsupported)
        # A gradient sums, so only the plain and the batched op are exact.
        self.compare = Comparer(
            a.tol_scale, exact=not a.jax_tolerances and a.transform in ("none", "vmap"), transform=a.transform
        )
        self.xla = 0
        self.jax.monitoring.register_event_duration_secs_listener(self._on_event)

    def _on_event(self, name, *_, **__):
        if "backend_compile" in name:
            self.xla += 1

    def _is_unsupported(self, e):
        if isinstance(e, self.unsupported):
            return True
        return any(c is NotImplementedError or "unsupported" in c.__name__.lower() for c in type(e).__mro__)

    def _inputs(self, harness, salt):
        import numpy as np

        seed = zlib.adler32((harness.fullname + salt).encode())
        return harness.dyn_args_maker(np.random.RandomState(seed))

    def _reference(self, harness, salt, fun, args):
        import numpy as np

        jax, path = self.jax, None
        if self.a.reference_cache:
            key = hashlib.sha1("|".join([jax.__version__, self.a.transform, str(self.a.x64), harness.fullname, salt]).encode())
            # The inputs are part of the key: the name alone does not settle them.
            for x in jax.tree.leaves(args):
                x = np.asarray(x)
                key.update(f"{x.dtype}{x.shape}".encode() + x.tobytes())
            path = os.path.join(self.a.reference_cache, key.hexdigest() + ".pkl")
            if os.path.exists(path):
                with open(path, "rb") as f:
                    return pickle.load(f)
        out = jax.block_until_ready(jax.jit(fun)(*args))
        host = jax.tree.map(lambda x: x if str(x.dtype).startswith("key<") else to_host(x)[0], out)
        if path and not any(str(x.dtype).startswith("key<") for x in jax.tree.leaves(host)):
            os.makedirs(self.a.reference_cache, exist_ok=True)
            tmp = f"{path}.{os.getpid()}"
            with open(tmp, "wb") as f:
                pickle.dump(host, f)
            os.replace(tmp, path)
        return host

    def run(self, name):
        h = self.by_name[name]
        res = {"name": name, "group": h.group_name, "dtype": dtype_name(h)}
        t0 = time.perf_counter()
        try:
            res.update(self._run(h))
        except Exception as e:  # never let one harness take the worker down
            res.update(status="error", kind="runner", message=short(e), trace=traceback.format_exc()[-3000:])
        res["seconds"] = round(time.perf_counter() - t0, 4)
        return res

    def _run(self, h):
        import numpy as np

        jax = self.jax
        if not h.filter("cpu"):
            return dict(status="skip", message="JAX does not implement it on CPU")
        if not self.a.x64 and dtype_name(h) in ("float64", "complex128", "int64", "uint64"):
            return dict(status="skip", message="needs --x64")
        traces = [0]

        def body(*args):
            traces[0] += 1
            return h.dyn_fun(*args)

        a_in, b_in = self._inputs(h, ""), self._inputs(h, "#second")
        ta = transformed(body, a_in, self.a.transform)
        if ta is None:
            return dict(status="skip", message=f"no input to {self.a.transform}")
        fun, a_in = ta
        _, b_in = transformed(body, b_in, self.a.transform)
        same = len(a_in) == len(b_in) and all(np.shape(x) == np.shape(y) for x, y in zip(a_in, b_in, strict=True))
        sets = [("", a_in)] + ([("#second", b_in)] if same and a_in else [])

        try:
            jaxpr = jax.make_jaxpr(fun)(*a_in)
        except Exception as e:
            return dict(status="skip", message="reference does not trace: " + short(e))
        out = dict(primitives=sorted(primitives_of(jaxpr.jaxpr)))
        if self.a.transform in ("vjp", "jvp") and not jaxpr.out_avals:
            return dict(out, status="skip", message="no floating output")

        # The jit under test goes first: if it leans on XLA, XLA has nothing cached.
        # Nor may the trace above be found again, or traces would be counted short.
        if self.a.no_xla or self.a.require_cache:
            jax.clear_caches()
        traces[0] = 0
        before, t0 = self.xla, time.perf_counter()
        got, failure = [], None
        frozen = [[np.array(x, copy=True) if isinstance(x, np.ndarray) else x for x in s] for _, s in sets]
        try:
            f = self.jit(fun, **self.jit_kwargs)
            for _, s in sets:
                r = f(*s)
                got.append(jax.tree.map(self._land, r))
        except Exception as e:
            failure = e
        out.update(test_seconds=round(time.perf_counter() - t0, 4), xla_compiles=self.xla - before, traces=traces[0])
        if failure is not None:
            if self._is_unsupported(failure):
                return dict(out, status="unsupported", message=short(failure), kind=type(failure).__name__)
            tb = "".join(traceback.format_exception(failure))
            return dict(out, status="error", kind=type(failure).__name__, message=short(failure), trace=tb[-3000:])

        try:
            want = [self._reference(h, salt, fun, s) for (salt, _), s in zip(sets, frozen, strict=True)]
        except Exception as e:
            return dict(out, status="skip", message="reference fails: " + short(e))

        floor = (
            max(
                [self.compare.default.get(np.dtype(x.dtype).name, 0.0) for x in a_in if hasattr(x, "dtype") and is_float(x)],
                default=0.0,
            )
            * self.a.tol_scale
        )
        worst = (0.0, 0.0)
        for label, g, w, (_, s) in zip(("first call", "second call"), got, want, sets, strict=False):
            try:
                r = self.compare.tree(g, w, h, floor)
            except Mismatch as m:
                if m.kind == "value" and self._agrees_with_wide(fun, s, g, h, floor):
                    out.update(judged_by="float32")
                    continue
                return dict(out, status="fail", kind=m.kind, message=f"{label}: {m}"[:600], **m.stats)
            worst = max(worst[0], r[0]), max(worst[1], r[1])
        for (_, s), keep in zip(sets, frozen, strict=True):
            for x, k in zip(s, keep, strict=True):
                if isinstance(x, np.ndarray) and x.tobytes() != k.tobytes():
                    return dict(out, status="fail", kind="mutation", message="an input array was written to")
        out.update(max_abs=worst[0], max_rel=worst[1])
        if self.a.no_xla and out["xla_compiles"]:
            return dict(out, status="fallback", message=f"XLA compiled {out['xla_compiles']} module(s)")
        if self.a.require_cache and len(sets) > 1 and out["traces"] != 1:  # the reference may have traced since
            return dict(out, status="fail", kind="retrace", message=f"traced {out['traces']} times for two calls")
        return dict(out, status="pass")

    def _agrees_with_wide(self, fun, args, got, harness, floor):
        """Whether results computed from float16 or bfloat16 are those of float32, rounded.

        XLA rounds inside some operations (each product of an integer power); not to do so is no mistake.
        """
        jax, narrow = self.jax, ("float16", "bfloat16")
        if not any(str(getattr(x, "dtype", "")) in narrow for x in args):
            return False
        wide_args = [x.astype("float32") if str(getattr(x, "dtype", "")) in narrow else x for x in args]
        try:
            wide = jax.jit(fun)(*wide_args)
            self.compare.tree(got, jax.tree.map(lambda w, g: w.astype(g.dtype), wide, got), harness, floor)
        except Exception:  # does not compute in float32, or does not agree: the first verdict stands
            return False
        return True

    @staticmethod
    def _land(leaf):
        """Force the value now, so that late device errors belong to this harness,
        and so that donation or pooling cannot overwrite it."""
        import numpy as np

        dtype = getattr(leaf, "dtype", None)
        if dtype is not None and str(dtype).startswith("key<"):
            return leaf
        if dtype is not None and not isinstance(leaf, (np.ndarray, np.generic)):
            host = np.array(np.asarray(leaf), copy=True)
            if str(host.dtype) != str(dtype):
                raise TypeError(f"array says dtype {dtype} but converts to {host.dtype}")
            return host
        return leaf


def short(e):
    text = str(e).strip().splitlines()
    return f"{type(e).__name__}: {text[0] if text else ''}"[:400]


def worker_main(a):
    # Keep a private copy of stdout for answers; anything printed goes to stderr.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        w = Worker(a)
    except BaseException as e:
        answers.write(json.dumps({"fatal": short(e), "trace": traceback.format_exc()[-3000:]}) + "\n")
        return 1
    answers.write(json.dumps({"ready": True, "jax": w.jax.__version__}) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(w.run(json.loads(line)), default=str) + "\n")
    return 0
