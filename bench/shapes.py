"""Model folders without weights: the shape of a known model, a real tokenizer, random values.

Speed does not depend on the values, and no model hub is needed. Output text is noise.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

QWEN25_7B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "initializer_range": 0.02,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "model_type": "qwen2",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 49152,
}

# The same code paths in seconds on a CPU. The vocabulary covers the tokenizer's.
TINY: dict[str, Any] = {
    **QWEN25_7B,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 128,
    "intermediate_size": 256,
    "max_position_embeddings": 8192,
    "max_window_layers": 2,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "vocab_size": 60000,
}


def make_shape(folder: Path, config: dict[str, Any], tokenizer_from: Path) -> Path:
    """Write a model folder of this shape with another model's tokenizer and chat template.

    Args:
        folder: Where; made anew.
        config: The model's config.json.
        tokenizer_from: Folder with tokenizer.json, tokenizer_config.json and, if any, chat_template.jinja.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (tokenizer_from / name).exists():
            shutil.copy(tokenizer_from / name, folder / name)
    return folder
