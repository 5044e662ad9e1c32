"""Turns a llama.cpp model file (GGUF) into a folder that every engine loads.

Owns the only uses of torch and transformers outside the engine. vLLM does not run GGUF on CPUs, so the weights are
unpacked to bfloat16 once.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

# What llama.cpp calls the pre-tokenizer, to what tokenizer.json needs. transformers 5.19 does not read the name and writes
# GPT-2's split. SmolLM2 was trained on digits cut off first: white space before numbers, as in tables, has other ids.
_PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        ],
    },
}


class ConversionFailed(Exception):
    """The file cannot be converted; the message is one line."""


def convert_gguf(source: Path, dest: Path) -> None:
    """Write config, tokenizer, chat template and bfloat16 weights of a GGUF file into a folder.

    25 s and about 1 GB of memory for 135 M parameters on two cores.

    Args:
        source: The .gguf file.
        dest: An existing, empty folder.

    Raises:
        ConversionFailed: A library is missing or does not match, or the file is of a kind that is not known.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TQDM_DISABLE", "1")
    with _one_line_errors():
        import gguf  # noqa: PLC0415 - seconds to import, and absent on API machines
        import torch  # noqa: PLC0415
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415
        from transformers.utils import logging  # noqa: PLC0415

        logging.disable_progress_bar()
        fields = gguf.GGUFReader(source).fields
        name = str(fields["tokenizer.ggml.pre"].contents()) if "tokenizer.ggml.pre" in fields else None
        folder, file = str(source.parent), source.name
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, gguf_file=file)
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            gguf_file=file,
            dtype=torch.bfloat16,
            # Without it the weights stay packed and cannot be saved.
            quantization_config=GgufConfig(gguf_file=file, dequantize=True),
        )
        model.save_pretrained(str(dest))
        tokenizer.save_pretrained(str(dest))
    _set_pre_tokenizer(dest / "tokenizer.json", name)


def _set_pre_tokenizer(path: Path, name: str | None) -> None:
    wanted = _PRE_TOKENIZERS.get(name or "")
    if wanted is None:
        raise ConversionFailed(f"The pre-tokenizer {name!r} of the file is not one that is known.")
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["pre_tokenizer"] = wanted
    path.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


@contextlib.contextmanager
def _one_line_errors() -> Generator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConversionFailed(
            f"Converting needs {error.name}, which is not installed: install longread with the extra cpu or gpu."
        ) from error
    except (ImportError, RuntimeError) as error:
        first = (str(error).strip().splitlines() or ["no message"])[0]
        hint = (
            " Uninstall torchvision, torchaudio and torchcodec: they do not match this torch."
            if "torchvision" in first
            else ""
        )
        raise ConversionFailed(f"{type(error).__name__}: {first}{hint}") from error
    except (OSError, ValueError, KeyError) as error:
        raise ConversionFailed(f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}") from error
