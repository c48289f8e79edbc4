"""The GPU benchmark of speculation measures this project's draft, which it cannot import, with a target that fits."""

from draft_model.core.presets import find_preset
from loadtest.bench.speculation.gpu import DRAFT, TARGET


def test_the_draft_is_the_preset() -> None:
    shape = find_preset("draft-1b").shape
    assert {
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.context_tokens,
        "tie_word_embeddings": True,  # of every preset
    }.items() <= DRAFT.items()


def test_target_and_draft_have_one_vocabulary_and_heads_of_one_size() -> None:
    assert TARGET["vocab_size"] == DRAFT["vocab_size"]
    assert TARGET["hidden_size"] // TARGET["num_attention_heads"] == DRAFT["head_dim"]
