"""Converts a Llama model of this repository to llama.cpp's format, GGUF.

llama.cpp's own converter knows tokenizers by the hash of a sample, and not this one. Matrices become Q8_0, the nearest
to the INT8 weights that the server serves; an INT8 folder is multiplied out first.
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


_SHAPE = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "head_count": "num_attention_heads",
    "head_count_kv": "num_key_value_heads",
    "rope_dimension_count": "head_dim",
    "layer_norm_rms_eps": "rms_norm_eps",
    "vocab_size": "vocab_size",
}


def convert(folder: Path, out: Path) -> None:
    """Write the model of a folder as a GGUF file."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(str(out), "llama")
    _add_shape(writer, config)
    _add_tokenizer(writer, json.loads((folder / "tokenizer.json").read_text(encoding="utf-8")), config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, values in _weights(folder / "model.safetensors").items():
        own_name, array = names.get_name(name, try_suffixes=(".weight",)), _own_order(name, values, config)
        if own_name is None:
            raise ValueError(f"{name}: llama.cpp's Llama models have no such tensor")
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
    for name, key in _SHAPE.items():
        getattr(writer, f"add_{name}")(config[key])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])


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
    """Return the weights of a safetensors file as float32; INT8 ones are multiplied by their scales.

    NumPy has no bfloat16, so these are widened here.
    """
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    raw = {}
    for name, about in header.items():
        first, end = about["data_offsets"]
        is_short = about["dtype"] == "BF16"
        kind = {"F32": np.float32, "F16": np.float16, "I8": np.int8, "BF16": np.uint16}[about["dtype"]]
        array = np.frombuffer(data[start + first : start + end], kind)
        array = (array.astype(np.uint32) << 16).view(np.float32) if is_short else array.astype(np.float32)
        raw[name] = array.reshape(about["shape"])
    return {
        name: values * raw[f"{name}_scale"].reshape(-1, 1) if f"{name}_scale" in raw else values
        for name, values in raw.items()
        if name.endswith(".weight")
    }


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
