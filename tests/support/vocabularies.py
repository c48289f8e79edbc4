"""Small tokenizers with the rules of the known families, trained here on files of the standard library."""

import argparse
import dataclasses
import http.client
import inspect
import json
import textwrap
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

EMBEDDED = Path(__file__).parents[2] / "target_model" / "embedded" / "tokenizer.json"

VOCABULARY_SIZE = 1500

EMBEDDED_PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN_PATTERN = rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|{EMBEDDED_PATTERN}"
LLAMA3_PATTERN = QWEN_PATTERN.replace(r"\p{N}|", r"\p{N}{1,3}|")
TEKKEN_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

PIPED = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
ANGLE = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")


def sources() -> list[str]:
    """Texts to learn from."""
    modules: list[ModuleType] = [argparse, dataclasses, http.client, textwrap]
    return [inspect.getsource(module) for module in modules]


def train(
    pre_tokenizer: Any,
    control: tuple[str, ...],
    *,
    normalizer: Any = None,
    is_special: bool = True,
    extra: tuple[str, ...] = (),
    ignore_merges: bool = False,
) -> Tokenizer:
    """Return a byte-level encoding with control tokens and other added tokens."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY_SIZE, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(sources(), trainer)
    added = [AddedToken(token, special=is_special, normalized=False) for token in control]
    tokenizer.add_tokens(added + [AddedToken(token, special=False, normalized=False) for token in extra])
    return tokenizer


def split_by(pattern: str) -> Any:
    """Return a pre-tokeniser of one regular expression."""
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


@cache
def embedded() -> Tokenizer:
    """Return the embedded models' own tokenizer."""
    return Tokenizer.from_file(str(EMBEDDED))


@cache
def qwen() -> Tokenizer:
    """Return one whose markers are no special tokens, and that brings text into normal form C first."""
    control = (*PIPED, "<|file_sep|>", "<|repo_name|>", "<|endoftext|>", "<|im_end|>")
    return train(split_by(QWEN_PATTERN), control, normalizer=normalizers.NFC(), is_special=False)


@cache
def starcoder2() -> Tokenizer:
    """Return one that splits off digits, and words with the pattern of GPT-2."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return train(pre_tokenizers.Sequence([digits, words]), (*ANGLE, "<file_sep>", "<|endoftext|>"))


@cache
def llama3() -> Tokenizer:
    """Return one with up to three digits in a word, and whole words looked up before merging; no markers."""
    tokenizer = train(split_by(LLAMA3_PATTERN), ("<|begin_of_text|>",), ignore_merges=True)
    begin = ("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{begin[0]} $A", special_tokens=[begin])
    return tokenizer


@cache
def tekken() -> Tokenizer:
    """Return one that splits words where small letters end."""
    return train(split_by(TEKKEN_PATTERN), ("[PREFIX]", "[SUFFIX]", "[MIDDLE]"))


@cache
def deepseek() -> Tokenizer:
    """Return one with several splits in a row, and single letters among the added tokens."""
    patterns = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+")
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    markers = ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>")
    return train(pre_tokenizers.Sequence([*splits, digits, words]), markers, extra=("õ", "÷", "ü"))


def _sentencepiece(control: tuple[str, ...], extra: tuple[str, ...] = ()) -> dict[str, Any]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY_SIZE - 300, show_progress=False)
    tokenizer.train_from_iterator((line for text in sources() for line in text.splitlines()), trainer)
    spec: dict[str, Any] = json.loads(tokenizer.to_str())
    model = spec["model"]
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for token in (*model["vocab"], *extra, *control):
        vocabulary.setdefault(token, len(vocabulary))
    model.update(vocab=vocabulary, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    spec["added_tokens"] = [
        {"id": vocabulary[token], "content": token, "special": token not in extra, **flags}
        for token in ("<unk>", "<s>", "</s>", *extra, *control)
    ]
    blanks = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    spec["decoder"] = {"type": "Sequence", "decoders": [blanks, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    template = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [*template, {"Sequence": {"id": "B", "type_id": 1}}]
    begin = {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
    spec["post_processor"] = {"type": "TemplateProcessing", "single": template, "pair": pair, "special_tokens": begin}
    return spec


@cache
def llama2() -> Tokenizer:
    """Return one like SentencePiece's: no words, a blank put before the text, bytes for unknown characters."""
    spec = _sentencepiece(("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"))
    blank = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    spec["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, blank]}
    return Tokenizer.from_str(json.dumps(spec))


@cache
def metaspace() -> Tokenizer:
    """Return the same with the blanks replaced by the pre-tokeniser, as newer files have it."""
    spec = _sentencepiece(("[SUFFIX]", "[PREFIX]", "[MIDDLE]"))
    spec["normalizer"] = None
    spec["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    return Tokenizer.from_str(json.dumps(spec))


@cache
def gemma() -> Tokenizer:
    """Return one with runs of newlines among the added tokens, and no blank put first."""
    spec = _sentencepiece((*PIPED, "<|file_separator|>"), extra=("\n", "\n\n", "\n\n\n", "<table>"))
    pattern = {"String": " "}
    spec["pre_tokenizer"] = {"type": "Split", "pattern": pattern, "behavior": "MergedWithPrevious", "invert": False}
    return Tokenizer.from_str(json.dumps(spec))


@cache
def unknown() -> Tokenizer:
    """Return a tokenizer with an unknown kind of pre-tokeniser: it looks behind."""
    return train(split_by(r"(?<=a)b|\w+|\W"), (*PIPED, "<|endoftext|>", "<|file_sep|>"))


FAMILIES = {
    "embedded": embedded,
    "qwen": qwen,
    "starcoder2": starcoder2,
    "llama3": llama3,
    "tekken": tekken,
    "deepseek": deepseek,
    "llama2": llama2,
    "metaspace": metaspace,
    "gemma": gemma,
    "unknown": unknown,
}
