from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from service.errors import SettingsError
from workers.engine.shape import ModelShape

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 576,
    "head_dim": 64,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 30,
    "max_position_embeddings": 8192,
    "vocab_size": 49152,
    "dtype": "bfloat16",
    "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
}
QWEN: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "num_hidden_layers": 28,
    "max_position_embeddings": 32768,
    "vocab_size": 152064,
    "torch_dtype": "bfloat16",
    "rope_theta": 1000000.0,
}


def read(path: Path, config: dict[str, Any]) -> ModelShape:
    (path / "config.json").write_text(json.dumps(config))
    return ModelShape.read(path)


def test_a_current_config(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(b"0" * 1000)
    shape = read(tmp_path, LLAMA)
    assert (shape.native_length, shape.configured_length, shape.rope_theta) == (8192, 8192, 100000.0)
    assert shape.kv_bytes_per_token("auto") == 23_040
    assert shape.kv_bytes_per_token("fp8") == 11_520
    assert shape.kv_bytes_per_token("auto", "float32") == 46_080
    assert shape.weight_bytes == 1000


def test_an_older_config_without_weights(tmp_path: Path):
    shape = read(tmp_path, QWEN)
    assert (shape.head_dim, shape.rope_theta, shape.kv_bytes_per_token("auto")) == (128, 1e6, 57_344)
    assert shape.weight_bytes == pytest.approx(15.2e9, rel=0.01)


def test_a_config_that_is_scaled_already(tmp_path: Path):
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    shape = read(tmp_path, {**QWEN, "rope_scaling": scaling})
    assert (shape.native_length, shape.configured_length, shape.rope_type) == (32768, 131072, "yarn")


def test_a_model_inside_a_multimodal_one(tmp_path: Path):
    assert read(tmp_path, {"architectures": ["Wrapper"], "text_config": QWEN}).layers == 28


def test_compressed_attention(tmp_path: Path):
    shape = read(tmp_path, {**QWEN, "kv_lora_rank": 512, "qk_rope_head_dim": 64})
    assert shape.kv_values == 28 * 576


def test_other_weights_of_the_same_size_are_another_revision(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(bytes(100_000))
    first = read(tmp_path, LLAMA).revision
    (tmp_path / "model.safetensors").write_bytes(bytes(50_000) + b"1" * 50_000)
    assert read(tmp_path, LLAMA).revision != first


def test_the_revision_follows_config_and_weights(tmp_path: Path):
    first = read(tmp_path, LLAMA).revision
    (tmp_path / "model.safetensors").write_bytes(b"0")
    second = read(tmp_path, LLAMA).revision
    assert len({first, second, read(tmp_path, {**LLAMA, "rope_theta": 1}).revision}) == 3


@pytest.mark.parametrize("config", ["", "[]", "{}", '{"num_attention_heads": "x"}'])
def test_what_is_no_language_model_is_refused(tmp_path: Path, config: str):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(SettingsError, match=r"config\.json"):
        ModelShape.read(tmp_path)


def test_an_absent_model_is_refused_with_the_remedy(tmp_path: Path):
    with pytest.raises(SettingsError, match="longread model prepare"):
        ModelShape.read(tmp_path)
