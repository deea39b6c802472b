"""The model's configuration, read from and written to the released ``config.json`` layouts.

Two layouts are known: ``kimi_k3`` (everything about text nested in ``text_config``) and ``kimi_linear`` (flat). A field this
code does not know is an error rather than silently ignored, because ignoring it would give a different model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

# Fields that describe the file or the tokenizer, or that mean nothing in these models: kept for writing back, never used.
_PASSED_THROUGH = (
    "architectures model_type dtype torch_dtype auto_map transformers_version max_position_embeddings model_max_length "
    "rope_theta rope_parameters rope_scaling head_dim image_placeholder media_placeholder_token_id use_cache "
    "attention_dropout topk_method mla_use_nope num_nextn_predict_layers num_key_value_heads"
)
_LINEAR_ATTENTION = {
    "full_attn_layers": "full_attn_layers",
    "kda_layers": "kda_layers",
    "head_dim": "kda_head_dim",
    "num_heads": "kda_num_heads",
    "short_conv_kernel_size": "short_conv_kernel_size",
    "use_full_rank_gate": "use_full_rank_gate",
    "gate_lower_bound": "gate_lower_bound",
}
_SHARED_WITH_TOP = ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "ignore_index")


@dataclass(frozen=True)
class Config:
    """Every number and switch of the text model; immutable and hashable, so it can key compiled functions.

    ``kda_layers`` and ``full_attn_layers`` are 1-based, as in the files. Methods that take a layer take the 0-based index.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    kda_layers: tuple[int, ...]
    full_attn_layers: tuple[int, ...]
    kda_head_dim: int
    kda_num_heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None
    short_conv_kernel_size: int = 4
    use_full_rank_gate: bool = False
    gate_lower_bound: float | None = None
    mla_use_output_gate: bool = False
    attn_res_block_size: int | None = None
    hidden_act: str = "silu"
    activation_situ_beta: float | None = 4.0
    activation_situ_linear_beta: float | None = 25.0
    rms_norm_eps: float = 1e-5
    num_experts: int = 0
    num_experts_per_token: int = 1
    num_shared_experts: int = 0
    moe_intermediate_size: int = 0
    routed_expert_hidden_size: int | None = None
    latent_moe_use_norm: bool = False
    moe_router_activation_func: str = "sigmoid"
    moe_renormalize: bool = True
    routed_scaling_factor: float = 1.0
    use_grouped_topk: bool = True
    num_expert_group: int = 1
    topk_group: int = 1
    first_k_dense_replace: int = 0
    moe_layer_freq: int = 1
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    ignore_index: int = -100
    nested: bool = True
    router_bias_in_weights: bool = False
    """Take routing weights from the biased scores, as the code shipped with Kimi-Linear-48B does. Not stored in files."""
    extra: str = field(default="{}", compare=False)
    """JSON of the fields that were read but have no meaning here, to be written back."""

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise ValueError(f"config: {problem}")

    # ---- schedule -----------------------------------------------------------------------------------------------------

    def is_kda(self, layer: int) -> bool:
        """Whether the layer's token mixer is KDA (otherwise MLA)."""
        return layer + 1 in self.kda_layers

    def is_moe(self, layer: int) -> bool:
        """Whether the layer's feed-forward part is a mixture of experts (otherwise a dense MLP)."""
        return self.num_experts > 0 and layer >= self.first_k_dense_replace and layer % self.moe_layer_freq == 0

    def opens_block(self, layer: int) -> bool:
        """Whether a residual block of Attention Residuals begins at the layer."""
        return self.attn_res_block_size is not None and layer % self.attn_res_block_size == 0

    @property
    def expert_input_size(self) -> int:
        """Width the routed experts read and write: the latent size, or the hidden size without a latent."""
        return self.routed_expert_hidden_size or self.hidden_size

    # ---- reading and writing ------------------------------------------------------------------------------------------

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Config:
        """Read ``config.json`` (or the folder that holds it)."""
        path = Path(path)
        file = path / "config.json" if path.is_dir() else path
        if not file.is_file():
            raise FileNotFoundError(f"no config.json at {file}: give the folder of a checkpoint or the file itself")
        return cls.from_dict(json.loads(file.read_text(encoding="utf-8")))

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Config:
        """Build from a parsed ``config.json``; raises ValueError on unknown or contradictory fields."""
        kind = raw.get("model_type")
        if kind not in ("kimi_k3", "kimi_linear"):
            raise ValueError(f"config: model_type is {kind!r}; only 'kimi_k3' and 'kimi_linear' are known")
        nested = kind == "kimi_k3"
        if nested and not isinstance(raw.get("text_config"), dict):
            raise ValueError("config: model_type 'kimi_k3' needs a text_config")
        text = dict(raw["text_config"] if nested else raw)
        top = {key: value for key, value in raw.items() if key != "text_config"} if nested else {}
        _refuse_unbuilt(top | text)
        for key in _SHARED_WITH_TOP:
            if key in top:
                value = top.pop(key)
                if text.setdefault(key, value) != value:
                    raise ValueError(f"config: {key} is {value!r} at the top and {text[key]!r} in text_config")
        linear = text.pop("linear_attn_config", None)
        if not isinstance(linear, dict):
            raise ValueError("config: linear_attn_config is missing")
        values: dict[str, Any] = {"nested": nested}
        _take(linear, _LINEAR_ATTENTION, values, "linear_attn_config")
        internal = set(_LINEAR_ATTENTION.values()) | {"nested", "extra", "router_bias_in_weights"}
        known = {item.name: item.name for item in fields(cls) if item.name not in internal}
        _check_fixed(text)
        kept_text = {key: text.pop(key) for key in list(text) if key in _PASSED_THROUGH.split()}
        kept_top = {key: top.pop(key) for key in list(top) if key in _PASSED_THROUGH.split()}
        _take(text, known, values, "text_config" if nested else "config")
        _take(top, {}, values, "config")
        missing = [item.name for item in fields(cls) if item.default is item.default_factory and item.name not in values]
        if missing:
            raise ValueError(f"config: missing fields {missing}")
        for key in ("kda_layers", "full_attn_layers"):
            values[key] = tuple(values[key])
        for item in fields(cls):  # null means "not set" wherever None is no value of the field
            if values.get(item.name, ...) is None and "None" not in str(item.type):
                del values[item.name]
        return cls(**values, extra=json.dumps({"top": kept_top, "text": kept_text}, sort_keys=True))

    def to_dict(self, dtype: str = "float32") -> dict[str, Any]:
        """The ``config.json`` content: ``from_dict(to_dict())`` is the same configuration."""
        inner = set(_LINEAR_ATTENTION.values()) | {"nested", "extra", "router_bias_in_weights"}
        extra = json.loads(self.extra)
        text: dict[str, Any] = {
            "architectures": ["KimiLinearForCausalLM"],
            "model_type": "kimi_linear",
            "mla_use_nope": True,
            "topk_method": "noaux_tc",
            "num_nextn_predict_layers": 0,
            "num_key_value_heads": self.num_attention_heads,
            **extra.get("text", {}),
            "dtype": dtype,
        }
        text |= {item.name: getattr(self, item.name) for item in fields(self) if item.name not in inner}
        text["linear_attn_config"] = {name: getattr(self, own) for name, own in _LINEAR_ATTENTION.items()}
        if not self.nested:
            return text
        top = {
            "architectures": ["KimiK3ForConditionalGeneration"],
            "model_type": "kimi_k3",
            **extra.get("top", {}),
            "dtype": dtype,
        }
        return top | {key: text[key] for key in _SHARED_WITH_TOP} | {"text_config": text}

    # ---- consistency --------------------------------------------------------------------------------------------------

    def _problems(self) -> list[str]:
        both = sorted((*self.kda_layers, *self.full_attn_layers))
        moe = any(self.is_moe(layer) for layer in range(self.num_hidden_layers)) if self.moe_layer_freq > 0 else False
        checks = [
            (both == list(range(1, self.num_hidden_layers + 1)),
             f"kda_layers and full_attn_layers together must name each of the layers 1..{self.num_hidden_layers} once"),
            (self.hidden_act in ("situ", "silu"), f"hidden_act {self.hidden_act!r} is not 'situ' or 'silu'"),
            (self.moe_router_activation_func in ("sigmoid", "softmax"),
             f"moe_router_activation_func {self.moe_router_activation_func!r} is not 'sigmoid' or 'softmax'"),
            (self.gate_lower_bound is None or self.gate_lower_bound < 0, "gate_lower_bound must be negative or null"),
            (self.attn_res_block_size is None or self.attn_res_block_size > 0, "attn_res_block_size must be positive or null"),
            (self.short_conv_kernel_size >= 1, "short_conv_kernel_size must be at least 1"),
            (self.moe_layer_freq > 0, "moe_layer_freq must be positive"),
            (not moe or 0 < self.num_experts_per_token <= self.num_experts,
             f"num_experts_per_token {self.num_experts_per_token} must be between 1 and num_experts {self.num_experts}"),
            (not moe or self.moe_intermediate_size > 0, "moe_intermediate_size must be positive when there are experts"),
            (not moe or (self.num_expert_group >= 1 and self.num_experts % self.num_expert_group == 0),
             f"num_experts {self.num_experts} does not divide into {self.num_expert_group} groups"),
            (1 <= self.topk_group <= self.num_expert_group, "topk_group must be between 1 and num_expert_group"),
            (self.use_grouped_topk or self.num_expert_group == 1, "num_expert_group > 1 contradicts use_grouped_topk false"),
            (not self.latent_moe_use_norm or bool(self.routed_expert_hidden_size),
             "latent_moe_use_norm needs routed_expert_hidden_size"),
        ]  # fmt: skip
        sizes = (
            "vocab_size hidden_size num_hidden_layers num_attention_heads kda_head_dim kda_num_heads kv_lora_rank v_head_dim"
        )
        checks += [(getattr(self, name) > 0, f"{name} must be positive") for name in sizes.split()]
        return [message for fine, message in checks if not fine]


def _take(source: dict[str, Any], known: dict[str, str], into: dict[str, Any], where: str) -> None:
    unknown = sorted(set(source) - set(known))
    if unknown:
        raise ValueError(f"config: unknown fields {unknown} in {where}; this code would ignore them and compute another model")
    into.update({known[key]: value for key, value in source.items()})


def _check_fixed(text: dict[str, Any]) -> None:
    """Fields with one supported value."""
    heads = text.get("num_attention_heads")
    expected = {"topk_method": "noaux_tc", "mla_use_nope": True, "num_nextn_predict_layers": 0, "num_key_value_heads": heads}
    for key, value in expected.items():
        if text.get(key, value) != value:
            raise ValueError(f"config: {key} is {text[key]!r}; only {value!r} is supported")


def _refuse_unbuilt(merged: dict[str, Any]) -> None:
    if merged.pop("vision_config", None) is not None:
        raise NotImplementedError(
            "config: vision_config asks for the vision tower, which is not built yet; remove it for text only"
        )
    if merged.get("quantization_config") is not None:
        raise NotImplementedError("config: quantization_config asks for packed MXFP4 experts, which are not built yet")
