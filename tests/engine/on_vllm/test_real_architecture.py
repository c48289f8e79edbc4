"""A real architecture, as `make serve MODEL=...` serves one: Qwen2 with a tokenizer of its kind and random weights."""

from pathlib import Path

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from completion.v1 import completion_pb2 as pb
from completion_server.app.engine_factory import make_engine_factory
from target_model.quantise import quantise_folder
from tests.support.models import ROOT
from tests.support.server import ask, make_config, request, run_server

pytestmark = pytest.mark.serial

VOCABULARY = 1500
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MARKERS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>",
]  # fmt: skip
BEFORE = "import os\n\n\ndef names_of(folder):\n    names = os.listdir(folder)\n    return sorted(na"
AFTER = ")\n\n\nprint(names_of('.'))\n"


def write_model(folder: Path) -> None:
    """Write a Qwen2 model of two layers with random weights, and a tokenizer trained on this repository's source."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=MARKERS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    sources = [path.read_text("utf-8") for path in (ROOT / "completion_server").glob("*.py")]
    tokenizer.train_from_iterator(sources, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(folder)
    torch.manual_seed(1)
    config = Qwen2Config(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=256, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


async def test_qwen2_is_served_with_healing_int8_prefix_cache_and_drafts(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    quantise_folder(tmp_path / "model", tmp_path / "int8", with_head=True)
    config = make_config(
        f"engine.model={tmp_path / 'int8'}", "engine.draft_model=ngram", "engine.num_speculative_tokens=3",
        "engine.max_num_seqs=4", "scheduling.max_slots=4", "speculation.mode=fixed", "prompt.max_prompt_tokens=0",
    )  # fmt: skip
    async with run_server(config, make_engine_factory(config)) as server:
        ready = server.ready
        assert (ready.prompt_template, ready.speed is not None) == ("qwen", True)
        typed = [
            request(
                BEFORE + "mes"[:number],
                AFTER,
                sequence=number + 1,
                mode=pb.MODE_MULTI_LINE,
                max_tokens=24,
                document_uri="file:///names.py",
                without_completion_cache=True,
            )
            for number in range(4)
        ]
        answers = [await ask(server.stub, each, metadata=(("x-user-id", "ann"),)) for each in typed]
    usages = [answer.end.usage for answer in answers if answer.end is not None]
    assert [answer.reason in ("stop", "length") for answer in answers] == [True] * 4
    assert usages[0].cached_prompt_tokens == 0
    assert all(usage.cached_prompt_tokens >= 32 for usage in usages[1:]), "a key computes the end of its prompt alone"
    assert sum(usage.drafted_tokens for usage in usages) > 0
