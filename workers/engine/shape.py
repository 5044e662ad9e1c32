"""What the arithmetic of profiles needs to know of a model, read from its ``config.json``."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.errors import SettingsError

# Not attention_factor: an explicit one belongs to the config's own factor.
_ROPE_EXTRA = ("partial_rotary_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A model's sizes.

    Attributes:
        architecture: Class name in the config.
        native_length: Context length in tokens the model was trained for, before any rope scaling.
        rope_theta: Base of the rotary embedding.
        rope_type: Scaling the config itself asks for (``default`` is none, ``per layer`` one for each kind of layer).
        rope_extra: What else the config says of its rope and another factor leaves true, such as ``partial_rotary_factor``.
        configured_length: Context length with the config's own scaling.
        layers: Decoder layers.
        heads: Attention heads.
        kv_heads: Key and value heads.
        head_dim: Numbers in one head.
        kv_values: Numbers kept in the KV cache for one token, over all layers.
        vocab_size: Rows of the embedding.
        dtype_bytes: Bytes of one unquantised number.
        weight_bytes: Size of the weights on disk, or an estimate from the sizes when there are none.
        quantization: Method the weights are quantised with (``gguf`` where there are no others); None when they are not.
        revision: 16 hex digits that change with config or weights.
    """

    architecture: str
    native_length: int
    rope_theta: float
    rope_type: str
    configured_length: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    kv_values: int
    vocab_size: int
    dtype_bytes: int
    weight_bytes: int
    quantization: str | None
    revision: str
    rope_extra: tuple[tuple[str, Any], ...] = ()

    def kv_bytes_per_token(self, kv_cache_dtype: str, dtype: str = "auto") -> int:
        """Bytes one token takes in the KV cache, all layers together.

        Args:
            kv_cache_dtype: The cache's type; ``auto`` is the weights'.
            dtype: The type weights are computed in; ``auto`` is the model's own.
        """
        if kv_cache_dtype.startswith("fp8"):
            return self.kv_values
        name = dtype if kv_cache_dtype == "auto" else kv_cache_dtype
        return self.kv_values * {"auto": self.dtype_bytes, "float32": 4}.get(name, 2)

    @classmethod
    def read(cls, model_dir: Path) -> ModelShape:
        """Read the model in this folder.

        Raises:
            SettingsError: There is no model, or its config lacks a size.
        """
        path = model_dir / "config.json"
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise SettingsError(
                f"There is no model in {model_dir} (no config.json): run `longread model prepare` for the small one, or "
                "set LONGREAD_MODEL__PATH to the folder of yours."
            ) from error
        try:
            return cls._from_config(json.loads(text), model_dir, text)
        except (KeyError, ValueError, TypeError) as error:
            raise SettingsError(f"{path} is not the config of a language model: {error!r}.") from error

    @classmethod
    def _from_config(cls, whole: dict[str, Any], model_dir: Path, text: str) -> ModelShape:
        config: dict[str, Any] = {**whole, **(whole.get("text_config") or {})}
        rope: dict[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
        heads, layers = int(config["num_attention_heads"]), int(config["num_hidden_layers"])
        kv_heads = int(config.get("num_key_value_heads") or heads)
        head_dim = int(config.get("head_dim") or config["hidden_size"] // heads)
        configured = int(config["max_position_embeddings"])
        is_per_layer = any(isinstance(value, dict) for value in rope.values())
        rope_type = "per layer" if is_per_layer else str(rope.get("rope_type") or rope.get("type") or "default")
        native = int(rope.get("original_max_position_embeddings") or configured) if rope_type == "yarn" else configured
        if config.get("kv_lora_rank"):
            # Multi-head latent attention keeps one compressed vector instead of keys and values.
            kv_values = layers * (int(config["kv_lora_rank"]) + int(config.get("qk_rope_head_dim") or 0))
        else:
            kv_values = 2 * layers * kv_heads * head_dim
        dtype_bytes = 4 if str(config.get("dtype") or config.get("torch_dtype")).endswith("float32") else 2
        weights = _weights(model_dir)
        factor = float(rope.get("factor") or 1.0) if rope_type == "yarn" else 1.0
        return cls(
            architecture=str((whole.get("architectures") or ["unknown"])[0]),
            native_length=native,
            rope_extra=tuple((name, rope[name]) for name in _ROPE_EXTRA if name in rope),
            rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
            rope_type=rope_type,
            configured_length=max(configured, int(native * factor)),
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            kv_values=kv_values,
            vocab_size=int(config["vocab_size"]),
            dtype_bytes=dtype_bytes,
            weight_bytes=sum(weights.values())
            or _estimated_parameters(config, heads, kv_heads, head_dim) * dtype_bytes,
            quantization=(whole.get("quantization_config") or {}).get("quant_method")
            or ("gguf" if weights and all(name.endswith(".gguf") for name in weights) else None),
            revision=_revision(text, model_dir),
        )


_SAMPLES = 16
_SAMPLE_BYTES = 4096


def model_revision(model_dir: Path) -> str:
    """16 hex digits that change with a model's config or weights; empty when there is no config."""
    try:
        return _revision((model_dir / "config.json").read_text(encoding="utf-8"), model_dir)
    except OSError:
        return ""


def _weights(model_dir: Path) -> dict[str, int]:
    return {p.name: p.stat().st_size for p in sorted(model_dir.iterdir()) if p.suffix in _WEIGHT_SUFFIXES}


def _revision(config: str, model_dir: Path) -> str:
    """From the config and samples of the weights: a fine-tune has the sizes of what it was made from."""
    digest = hashlib.sha256(config.encode())
    for name, size in _weights(model_dir).items():
        digest.update(f"{name}:{size}".encode())
        with (model_dir / name).open("rb") as file:
            for part in range(_SAMPLES):
                file.seek(size * part // _SAMPLES)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def _estimated_parameters(config: dict[str, Any], heads: int, kv_heads: int, head_dim: int) -> int:
    """Parameters of a dense decoder of these sizes, for folders without weights (measurements with random ones)."""
    hidden = int(config["hidden_size"])
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    feed_forward = 3 * hidden * int(config.get("intermediate_size") or 4 * hidden)
    embeddings = (1 if config.get("tie_word_embeddings") else 2) * int(config["vocab_size"]) * hidden
    return int(config["num_hidden_layers"]) * (attention + feed_forward) + embeddings
