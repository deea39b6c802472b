"""Kimi K3's text model (and Kimi Linear's) as pure JAX functions."""

from .cache import init_cache
from .checkpoint import from_named, iter_named, load_params, save_pretrained, to_named
from .config import Config
from .generate import generate, stream
from .kda import kda
from .model import forward, loss_fn
from .params import count_parameters, init_params, trained_mask
from .presets import tiny

__all__ = [
    "Config",
    "count_parameters",
    "forward",
    "from_named",
    "generate",
    "init_cache",
    "init_params",
    "iter_named",
    "kda",
    "load_params",
    "loss_fn",
    "save_pretrained",
    "stream",
    "tiny",
    "to_named",
    "trained_mask",
]
