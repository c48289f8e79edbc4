"""Converts a Llama model of this repository to llama.cpp's format, GGUF.

Runs in the environment of `make llama-server`, which has the package gguf; imports nothing of this project. llama.cpp's
own converter knows tokenizers by the hash of a sample, and not this one. Matrices become Q8_0, the nearest to the INT8
weights that the server serves; an INT8 folder is multiplied out first.
"""

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np

_PRE_TOKENIZER = "ufakzeka"
"""llama.cpp's name of the regular expression that this repository's tokenizer splits text with."""
_SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def convert(folder: Path, out: Path) -> None:
    """Write the model of a folder as a GGUF file."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(str(out), "llama")
    _add_shape(writer, config)
    _add_tokenizer(writer, json.loads((folder / "tokenizer.json").read_text(encoding="utf-8")), config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, values in _weights(folder / "model.safetensors").items():
        own_name, array = names.get_name(name, try_suffixes=(".weight",)), _own_order(name, values, config)
        is_matrix = array.ndim == 2 and own_name != "token_embd.weight"  # noqa: PLR2004
        if is_matrix:
            packed = gguf.quants.quantize(array, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(own_name, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(own_name, array.astype(np.float16 if array.ndim > 1 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: Any, config: dict[str, Any]) -> None:  # noqa: ANN401 - gguf has no types
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _add_tokenizer(writer: Any, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:  # noqa: ANN401
    split = tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    if split != _SPLIT:
        raise ValueError(f"tokenizer.json: splits text by {split!r}; llama.cpp's {_PRE_TOKENIZER} by {_SPLIT!r}")
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    special = {each["content"]: each["id"] for each in tokenizer["added_tokens"]}
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_PRE_TOKENIZER)
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.CONTROL if each in special else kinds.NORMAL for each in tokens])
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in merges])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    # Without a file marker /infill makes the usual prefix-suffix-middle prompt, as the other contestants' clients do.
    for name, marker in (("fim_pre", "prefix"), ("fim_suf", "suffix"), ("fim_mid", "middle")):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", special[f"<|fim_{marker}|>"])


def _weights(path: Path) -> dict[str, Any]:
    """Return the weights as float32; INT8 ones are multiplied by their scales."""
    raw = _read_safetensors(path)
    found = {}
    for name, values in raw.items():
        if name.endswith(".weight"):
            scale = raw.get(f"{name}_scale")
            found[name] = values.astype(np.float32) * (1 if scale is None else scale.reshape(-1, 1))
    return found


def _read_safetensors(path: Path) -> dict[str, Any]:
    """Return the arrays of a file. NumPy has no bfloat16, so these are widened here."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    found = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        start, end = about["data_offsets"]
        piece = data[8 + length + start : 8 + length + end]
        if about["dtype"] == "BF16":
            array = (np.frombuffer(piece, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            array = np.frombuffer(piece, {"F32": np.float32, "F16": np.float16, "I8": np.int8}[about["dtype"]])
        found[name] = array.reshape(about["shape"])
    return found


def _own_order(name: str, values: Any, config: dict[str, Any]) -> Any:  # noqa: ANN401
    """Return a weight in llama.cpp's order: it rotates neighbours, where the Hugging Face format rotates halves."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    part = name.split(".")[-2]
    if part not in heads:
        return values
    rows, columns = values.shape
    halves = values.reshape(heads[part], 2, rows // heads[part] // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
