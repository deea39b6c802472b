"""The list of a model's tensors: released name, place in the parameter tree, shape and initial value.

Everything that walks over parameters (initialisation, names in and out, checkpoints) follows this one list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .config import Config

Params = dict[str, Any]
Path = tuple[str | int, ...]
_A_LOG_ALIGNMENT = 128


@dataclass(frozen=True)
class Tensor:
    """One leaf of the parameter tree.

    ``names`` holds the released name, or one name an expert when the leaf stacks them along its first axis. ``init`` is one of
    normal, uniform (within one over the root of the last axis), ones, zeros, decay, step_bias. ``wide`` tensors are stored in
    float32 whatever the rest is in.
    """

    names: tuple[str, ...]
    path: Path
    shape: tuple[int, ...]
    init: str = "normal"
    wide: bool = False
    stacked: bool = False
    trained: bool = True


def tensors(config: Config) -> Iterator[Tensor]:
    """All leaves, in the order of the layers."""
    prefix = "language_model." if config.nested else ""
    hidden = config.hidden_size
    yield Tensor((f"{prefix}model.embed_tokens.weight",), ("embed_tokens",), (config.vocab_size, hidden))
    for layer in range(config.num_hidden_layers):
        for item in _layer(config, layer):
            names = tuple(f"{prefix}model.layers.{layer}.{name}" for name in item.names)
            yield Tensor(names, ("layers", layer, *item.path), *_rest(item))
    if config.attn_res_block_size is not None:
        for item in _residual_mix("output_attn_res", hidden):
            yield Tensor((f"{prefix}model.{item.names[0]}",), item.path, *_rest(item))
    yield Tensor((f"{prefix}model.norm.weight",), ("norm",), (hidden,), "ones")
    if not config.tie_word_embeddings:
        yield Tensor((f"{prefix}lm_head.weight",), ("lm_head",), (config.vocab_size, hidden))


def _rest(item: Tensor) -> tuple[Any, ...]:
    return item.shape, item.init, item.wide, item.stacked, item.trained


def _weight(module: str, *shape: int, init: str = "normal", trained: bool = True) -> Tensor:
    return Tensor((f"{module}.weight",), tuple(module.split(".")), shape, init, trained=trained)


def _residual_mix(module: str, hidden: int, trained: bool = True) -> Iterator[Tensor]:
    yield _weight(f"{module}_norm", hidden, init="ones", trained=trained)
    yield _weight(f"{module}_proj", 1, hidden, trained=trained)


def _layer(config: Config, layer: int) -> Iterator[Tensor]:
    hidden = config.hidden_size
    yield _weight("input_layernorm", hidden, init="ones")
    yield _weight("post_attention_layernorm", hidden, init="ones")
    if config.attn_res_block_size is not None:
        # Layer 0 reads the plain embedding: its attention mix exists in the files and is never used.
        yield from _residual_mix("self_attention_res", hidden, trained=layer > 0)
        yield from _residual_mix("mlp_res", hidden)
    yield from _kda(config) if config.is_kda(layer) else _mla(config)
    if config.is_moe(layer):
        yield from _moe(config)
    else:
        yield from _gated_mlp("mlp", hidden, config.intermediate_size)


def _gated_mlp(module: str, hidden: int, inner: int) -> Iterator[Tensor]:
    yield _weight(f"{module}.gate_proj", inner, hidden)
    yield _weight(f"{module}.up_proj", inner, hidden)
    yield _weight(f"{module}.down_proj", hidden, inner)


def _kda(config: Config) -> Iterator[Tensor]:
    hidden, heads, dim = config.hidden_size, config.kda_num_heads, config.kda_head_dim
    size = heads * dim
    for name in "qkv":
        yield _weight(f"self_attn.{name}_proj", size, hidden)
    for name in "qkv":
        module = f"self_attn.{name}_conv1d"
        yield Tensor(
            (f"{module}.weight",), tuple(module.split(".")), (size, 1, config.short_conv_kernel_size), "uniform", wide=True
        )
    padded = -(-heads // _A_LOG_ALIGNMENT) * _A_LOG_ALIGNMENT
    a_log = (padded,) if config.nested else (1, 1, heads, 1)
    yield Tensor(("self_attn.A_log",), ("self_attn", "A_log"), a_log, "decay", wide=True)
    yield Tensor(("self_attn.dt_bias",), ("self_attn", "dt_bias"), (size,), "step_bias", wide=True)
    yield _weight("self_attn.f_a_proj", dim, hidden)
    yield _weight("self_attn.f_b_proj", size, dim)
    yield _weight("self_attn.b_proj", heads, hidden)
    if config.use_full_rank_gate:
        yield _weight("self_attn.g_proj", size, hidden)
    else:
        yield _weight("self_attn.g_a_proj", dim, hidden)
        yield _weight("self_attn.g_b_proj", size, dim)
    yield Tensor(("self_attn.o_norm.weight",), ("self_attn", "o_norm"), (dim,), "ones", wide=True)
    yield _weight("self_attn.o_proj", hidden, size)


def _mla(config: Config) -> Iterator[Tensor]:
    hidden, heads, rank = config.hidden_size, config.num_attention_heads, config.kv_lora_rank
    nope, rope, value = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
    if config.q_lora_rank is None:
        yield _weight("self_attn.q_proj", heads * (nope + rope), hidden)
    else:
        yield _weight("self_attn.q_a_proj", config.q_lora_rank, hidden)
        yield _weight("self_attn.q_a_layernorm", config.q_lora_rank, init="ones")
        yield _weight("self_attn.q_b_proj", heads * (nope + rope), config.q_lora_rank)
    yield _weight("self_attn.kv_a_proj_with_mqa", rank + rope, hidden)
    yield _weight("self_attn.kv_a_layernorm", rank, init="ones")
    yield _weight("self_attn.kv_b_proj", heads * (nope + value), rank)
    if config.mla_use_output_gate:
        yield _weight("self_attn.g_proj", heads * value, hidden)
    yield _weight("self_attn.o_proj", hidden, heads * value)


def _moe(config: Config) -> Iterator[Tensor]:
    hidden, inner, width = config.hidden_size, config.moe_intermediate_size, config.expert_input_size
    block, experts = "block_sparse_moe", config.num_experts
    yield _weight(f"{block}.gate", experts, hidden, init="uniform")
    bias = "e_score_correction_bias"
    yield Tensor((f"{block}.gate.{bias}",), (block, bias), (experts,), "zeros", wide=True, trained=False)
    if config.routed_expert_hidden_size:
        yield _weight(f"{block}.routed_expert_down_proj", width, hidden)
        if config.latent_moe_use_norm:
            yield _weight(f"{block}.routed_expert_norm", width, init="ones")
        yield _weight(f"{block}.routed_expert_up_proj", hidden, width)
    if config.num_shared_experts:
        yield from _gated_mlp(f"{block}.shared_experts", hidden, config.num_shared_experts * inner)
    for name, shape in (("w1", (inner, width)), ("w3", (inner, width)), ("w2", (width, inner))):
        names = tuple(f"{block}.experts.{expert}.{name}.weight" for expert in range(experts))
        yield Tensor(names, (block, "experts", name), (experts, *shape), stacked=True)


def lookup(tree: Any, path: Path) -> Any:
    """The leaf at a path."""
    for key in path:
        tree = tree[key]
    return tree


def assemble(config: Config, leaves: dict[Path, Any]) -> dict[str, Any]:
    """The parameter tree with the given leaves: nested dicts, ``layers`` a list."""
    tree: dict[str, Any] = {"layers": [{} for _ in range(config.num_hidden_layers)]}
    for path, leaf in leaves.items():
        *parents, last = path
        node: Any = tree
        for key in parents:
            node = node[key] if isinstance(key, int) else node.setdefault(key, {})
        node[last] = leaf
    return tree


def trained_mask(config: Config) -> dict[str, Any]:
    """The parameter tree with True where the optimiser updates: not the unused mix of layer 0, not the router's biases."""
    return assemble(config, {item.path: item.trained for item in tensors(config)})


def count_parameters(config: Config) -> int:
    """Number of parameters, padding left out."""
    padding = {"decay": config.kda_num_heads}
    return sum(padding.get(item.init, int(np.prod(item.shape))) for item in tensors(config))


def init_params(config: Config, key: jax.Array, dtype: jax.typing.DTypeLike = jnp.float32) -> Params:
    """Fresh parameters; the same under jit as eagerly.

    All tensors of one distribution come from a single draw that is then cut up: one compilation instead of one a shape.
    """
    items = list(tensors(config))
    # Padding of A_log is not drawn: it is zero.
    sizes = {item.path: config.kda_num_heads if item.init == "decay" else int(np.prod(item.shape)) for item in items}
    leaves: dict[Path, Any] = {}
    for number, (kind, draw) in enumerate(_DRAWS.items()):
        drawn = [item for item in items if item.init == kind]
        total = sum(sizes[item.path] for item in drawn)
        flat: Any = draw(jax.random.fold_in(key, number), (total,))
        if not isinstance(flat, jax.core.Tracer):
            flat = np.asarray(flat)  # cut on the host, where a slice costs nothing
        start = 0
        for item in drawn:
            leaves[item.path] = flat[start : start + sizes[item.path]]
            start += sizes[item.path]
    for item in items:
        value = leaves.get(item.path, np.full(sizes[item.path], item.init == "ones", np.float32))
        leaves[item.path] = _placed(config, item, value).astype(jnp.float32 if item.wide else dtype)
    return assemble(config, jax.tree.map(jnp.asarray, leaves))


def _step_bias(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Inverse softplus of step sizes log-uniform between 1e-3 and 1e-1."""
    step = jnp.exp(jax.random.uniform(key, shape, minval=np.log(1e-3), maxval=np.log(1e-1)))
    return step + jnp.log(-jnp.expm1(-step))


_DRAWS: dict[str, Callable[[jax.Array, tuple[int, ...]], jax.Array]] = {
    "normal": jax.random.normal,
    "uniform": lambda key, shape: jax.random.uniform(key, shape, minval=-1.0, maxval=1.0),
    "decay": lambda key, shape: jnp.log(jax.random.uniform(key, shape, minval=1.0, maxval=16.0)),
    "step_bias": _step_bias,
}


def _placed(config: Config, item: Tensor, value: Any) -> Any:
    """Scale a tensor's share of the draw and give it its shape."""
    shape = item.shape
    xp = np if isinstance(value, np.ndarray) else jnp
    if item.init == "decay":
        return xp.concatenate([value, np.zeros(int(np.prod(shape)) - value.size, np.float32)]).reshape(shape)
    value = value.reshape(shape)
    if item.init == "uniform":
        return value * np.float32(shape[-1] ** -0.5)
    if item.init == "normal":
        value = value * np.float32(config.initializer_range)
    if item.path == ("embed_tokens",) and config.pad_token_id is not None:
        value = xp.where(np.arange(shape[0])[:, None] == config.pad_token_id, np.float32(0), value)
    return value
