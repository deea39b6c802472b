"""The parent's side: worker processes with a deadline for each harness, restarted when they die."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import tempfile
import threading
import time

from .report import BAD, STATUSES
from .selection import dtype_name


class WorkerHandle:
    """One worker process, restarted when it dies or is put down."""

    def __init__(self, argv, start_timeout):
        self.argv, self.start_timeout = argv, start_timeout
        self.proc = None

    def start(self):
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  closed in stop()
        self.proc = subprocess.Popen(
            self.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, start_new_session=True
        )
        self.buffer = b""
        hello = self._read(self.start_timeout)
        if not hello or "fatal" in hello:
            tail = self.tail()
            self.stop()
            raise RuntimeError((hello or {}).get("trace") or tail or "no start")

    def _read(self, timeout):
        end = time.monotonic() + timeout
        while b"\n" not in self.buffer:
            left = end - time.monotonic()
            if left <= 0:
                return {"timeout": True}
            ready, _, _ = select.select([self.proc.stdout], [], [], left)
            if ready:
                chunk = os.read(self.proc.stdout.fileno(), 1 << 16)
                if not chunk:
                    return None
                self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\n")
        return json.loads(line)

    def tail(self, n=1500):
        self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, self.log.tell() - n))
        return self.log.read().decode(errors="replace")

    def ask(self, name, timeout):
        if self.proc is None:
            self.start()
        t0 = time.perf_counter()
        try:
            self.proc.stdin.write((json.dumps(name) + "\n").encode())
            self.proc.stdin.flush()
            res = self._read(timeout)
        except BrokenPipeError:
            res = None
        if res is not None and "timeout" not in res:
            return res
        base = {"name": name, "seconds": round(time.perf_counter() - t0, 3)}
        if res is None:
            code = self.proc.wait()
            what = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            base.update(status="crash", message=f"worker died: {what}", trace=self.tail())
        else:
            base.update(status="timeout", message=f"no answer in {timeout:g} s", trace=self.tail())
        self.stop()
        return base

    def stop(self):
        if self.proc is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.proc.pid, signal.SIGKILL)
            self.proc.wait()
            self.proc.stdin.close()
            self.proc.stdout.close()
            self.log.close()
            self.proc = None


def run_all(a, selected, argv):
    jobs = queue.Queue()
    for h in selected:
        jobs.put(h)
    results, lock = [], threading.Lock()
    t_start, fatal = time.monotonic(), []

    def loop():
        handle = WorkerHandle(argv, a.start_timeout)
        served = 0
        while not fatal:
            try:
                h = jobs.get_nowait()
            except queue.Empty:
                break
            try:
                res = handle.ask(h.fullname, a.timeout)
            except RuntimeError as e:
                fatal.append(str(e))
                break
            res.setdefault("group", h.group_name)
            res.setdefault("dtype", dtype_name(h))
            served += 1
            if a.recycle and served % a.recycle == 0:
                handle.stop()
            with lock:
                results.append(res)
                done = len(results)
                if a.verbose or (res["status"] in BAD and a.show_bad):
                    print(f"{res['status']:11s} {res['name']}  {res.get('message', '')}", flush=True)
                if not a.quiet and (done % 500 == 0):
                    c = collections.Counter(r["status"] for r in results)
                    took = time.monotonic() - t_start
                    print(
                        f"[{done}/{len(selected)}] {took:.0f} s  " + "  ".join(f"{k} {c[k]}" for k in STATUSES if c[k]),
                        flush=True,
                    )
        handle.stop()

    threads = [threading.Thread(target=loop) for _ in range(max(1, a.jobs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if fatal:
        raise SystemExit("the worker could not start:\n" + fatal[0])
    results.sort(key=lambda r: r["name"])
    return results, time.monotonic() - t_start
