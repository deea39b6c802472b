"""Training a language model on bytes: one compiled step, a progress bar, and a checkpoint that is always loadable."""

from __future__ import annotations

import csv
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from tqdm import tqdm

from . import k3
from .plot import line_chart
from .text import load_text, sample_batch, unigram_entropy

Jit = Callable[..., Any]
DEFAULT_STEPS, DEFAULT_BATCH, DEFAULT_LENGTH, DEFAULT_LEARNING_RATE = 120, 8, 128, 8e-3
_LAST = 20


@dataclass
class TrainResult:
    """``params`` after the last step, the loss of each step, whether Ctrl-C ended it early, and the time of the steps."""

    params: Any
    losses: list[float]
    interrupted: bool
    seconds: float

    @property
    def final_loss(self) -> float:
        """Mean loss of the last 20 steps."""
        return float(np.mean(self.losses[-_LAST:]))


def make_optimizer(config: k3.Config, steps: int, lr: float) -> optax.GradientTransformation:
    """AdamW with a linear warm-up and a cosine decay, on the parameters that are trained."""
    warmup = max(1, min(20, steps // 10))
    schedule = optax.warmup_cosine_decay_schedule(lr / warmup, lr, warmup, max(steps, warmup + 1), end_value=0.1 * lr)
    adamw = optax.adamw(schedule, b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1)
    return optax.masked(adamw, k3.trained_mask(config))


def make_step(config: k3.Config, optimizer: optax.GradientTransformation) -> Callable[..., tuple[Any, Any, jax.Array]]:
    """``step(params, opt_state, batch [B, T]) -> (params, opt_state, loss)``: forward, backward and update."""

    def step(params: Any, opt_state: Any, batch: jax.Array) -> tuple[Any, Any, jax.Array]:
        loss, grads = jax.value_and_grad(k3.loss_fn)(params, config, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return step


def initial_state(config: k3.Config, optimizer: optax.GradientTransformation, seed: int) -> tuple[Any, Any]:
    """Parameters and optimiser state on the host. AdamW begins with zeros, so nothing needs to be compiled for its state."""
    params = jax.tree.map(np.asarray, k3.init_params(config, jax.random.key(seed)))
    shapes = jax.eval_shape(optimizer.init, params)
    return params, jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


def train(
    config: k3.Config,
    tokens: np.ndarray,
    *,
    steps: int,
    batch: int,
    length: int,
    lr: float,
    out_dir: str | Path,
    seed: int = 0,
    jit: Jit | None = None,
    progress: bool = True,
) -> TrainResult:
    """Train from fresh parameters on random windows of ``tokens`` and write checkpoint, loss.csv and loss.png to ``out_dir``.

    Only the loss of each step comes to the host. The first Ctrl-C ends training after the step in progress and everything is
    still written; a second one interrupts at once. ``jit`` is ``k3jit.jit`` unless given.
    """
    if steps < 1:
        raise ValueError(f"train: steps must be at least 1, got {steps}")
    optimizer = make_optimizer(config, steps, lr)
    params, opt_state = initial_state(config, optimizer, seed)
    compiled = (jit or default_jit())(make_step(config, optimizer), donate_argnums=(0, 1))
    rng = np.random.default_rng(seed)
    losses: list[float] = []
    bar = tqdm(total=steps, desc="training", unit="step", disable=not progress, dynamic_ncols=True)
    begin = time.perf_counter()
    with bar, _interrupt_flag() as interrupted:
        for _ in range(steps):
            started = time.perf_counter()
            params, opt_state, loss = compiled(params, opt_state, sample_batch(tokens, rng, batch, length))
            losses.append(float(loss))
            speed = batch * length / (time.perf_counter() - started)
            bar.set_postfix_str(f"loss {losses[-1]:.3f}, {speed:,.0f} tokens/s")
            bar.update()
            if not np.isfinite(losses[-1]):
                raise FloatingPointError(f"train: the loss is {losses[-1]} at step {len(losses)}; try a smaller learning rate")
            if interrupted.is_set():
                break
        seconds = time.perf_counter() - begin
        result = TrainResult(params, losses, interrupted.is_set(), seconds)
        write_outputs(out_dir, result, config, unigram_entropy(tokens))
    return result


def write_outputs(out_dir: str | Path, result: TrainResult, config: k3.Config, reference: float) -> None:
    """The checkpoint in the released layout, the loss as CSV and as a chart with the unigram entropy as reference."""
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    k3.save_pretrained(folder, result.params, config)
    with (folder / "loss.csv.tmp").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "loss"])
        writer.writerows([step + 1, f"{loss:.6f}"] for step, loss in enumerate(result.losses))
    os.replace(folder / "loss.csv.tmp", folder / "loss.csv")
    line_chart(folder / "loss.png.tmp", result.losses, "loss in nats a byte", reference)
    os.replace(folder / "loss.png.tmp", folder / "loss.png")


def run_train(
    text_path: str | Path,
    out_dir: str | Path,
    steps: int | None = None,
    batch: int | None = None,
    length: int | None = None,
    lr: float | None = None,
    seed: int = 0,
    jit: Jit | None = None,
    progress: bool = True,
) -> TrainResult:
    """Train the tiny model on a file or folder and say what was done; the body of the command line's ``train``."""
    tokens = load_text(text_path)
    config = k3.tiny()
    entropy = unigram_entropy(tokens)
    print(f"device: {device_name(jit)}")
    print(f"text: {text_path}, {tokens.size:,} bytes, unigram entropy {entropy:.3f} nats a byte")
    print(f"model: {k3.count_parameters(config):,} parameters in {config.num_hidden_layers} layers", flush=True)
    result = train(
        config,
        tokens,
        steps=steps or DEFAULT_STEPS,
        batch=batch or DEFAULT_BATCH,
        length=length or DEFAULT_LENGTH,
        lr=lr or DEFAULT_LEARNING_RATE,
        out_dir=out_dir,
        seed=seed,
        jit=jit,
        progress=progress,
    )
    if result.interrupted:
        print(f"interrupted after {len(result.losses)} steps; the checkpoint in {out_dir} is complete and loadable")
    count = min(_LAST, len(result.losses))
    print(
        f"mean loss of the last {count} steps: {result.final_loss:.3f}, {entropy - result.final_loss:.3f} below the unigram "
        f"entropy; {result.seconds:.1f} s for {len(result.losses)} steps"
    )
    print(f"wrote {Path(out_dir) / 'model.safetensors'}, config.json, loss.csv and loss.png", flush=True)
    return result


def default_jit() -> Jit:
    """``k3jit.jit``, imported only when it is needed."""
    import k3jit

    return k3jit.jit


def device_name(jit: Jit | None = None) -> str:
    """What the compiled functions run on, in words."""
    if jit is jax.jit:
        return f"{jax.devices()[0].device_kind} through XLA"
    import k3jit

    device = k3jit.devices()[0]
    return f"{device.name} ({device.kind}, {device.driver})"


@contextmanager
def _interrupt_flag() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets instead of raising: donated buffers must not be abandoned in the middle of a step."""
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    previous = signal.getsignal(signal.SIGINT)

    def handler(_signum: int, _frame: Any) -> None:
        flag.set()
        signal.signal(signal.SIGINT, previous)
        print("\ninterrupted: finishing this step, then saving (again to stop at once)", file=sys.stderr, flush=True)

    signal.signal(signal.SIGINT, handler)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, previous)
