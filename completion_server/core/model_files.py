"""Reads what a front end needs of a model: its tokenizer and its context length, by `tokenizers` and JSON alone.

A model is a folder, or an id on the hub, whose files come from its local cache or are downloaded.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from completion_server.core.errors import ConfigError

_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
"""The names of the context length in a config.json, by the kind of the model."""
_OPTIONS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def load_tokenizer(model: str, revision: str | None = None) -> Tokenizer:
    """Return the tokenizer of a model, as transformers would set it up.

    Raises:
        ConfigError: there is no tokenizer.json, or it can't be read.

    """
    path = _file(model, revision, "tokenizer.json")
    if path is None:
        msg = f"the tokenizer of {model} can't be loaded: there is no tokenizer.json"
        raise ConfigError(f"{msg}; transformers' AutoTokenizer.from_pretrained and save_pretrained make one")
    try:
        tokenizer: Tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises no narrower one
        raise ConfigError(f"the tokenizer of {model} can't be loaded: {error}") from error
    _add_tokens(tokenizer, _json(model, revision, "tokenizer_config.json"))
    return tokenizer


def _add_tokens(tokenizer: Tokenizer, settings: dict[str, Any]) -> None:
    """Add the tokens that only the settings name. Whether a text begins with a token is for tokenizer.json to say."""
    missing = [
        AddedToken(each["content"], **{key: value for key, value in each.items() if key in _OPTIONS})
        for _index, each in sorted(settings.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0]))
        if tokenizer.token_to_id(each["content"]) is None
    ]
    if missing:
        tokenizer.add_tokens(missing)


def context_length(model: str, revision: str | None = None) -> int:
    """Return the largest number of tokens of a model's context.

    Raises:
        ConfigError: there is no config.json, or it names none.

    """
    config = _json(model, revision, "config.json")
    if not config:
        raise ConfigError(f"engine.model: {model} can't be read: there is no config.json")
    for part in (config.get("text_config"), config):
        for name in _LENGTHS:
            if isinstance(part, dict) and part.get(name):
                return int(part[name])
    raise ConfigError(f"engine.max_model_len: must be set, because the config.json of {model} names no context length")


def _json(model: str, revision: str | None, name: str) -> dict[str, Any]:
    """Return the object in a model's file, an empty one without the file."""
    path = _file(model, revision, name)
    try:
        found: dict[str, Any] = {} if path is None else json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"engine.model: {name} of {model} can't be read: {error}") from error
    return found


def _file(model: str, revision: str | None, name: str) -> Path | None:
    """Return a file of a model, None if it has none."""
    folder = Path(model)
    if folder.is_dir():
        path = folder / name
        return path if path.is_file() else None
    from huggingface_hub import hf_hub_download  # takes a second to import
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(model, name, revision=revision))
    except LocalEntryNotFoundError as error:
        raise ConfigError(f"engine.model: {model} can't be fetched: {error}") from error
    except EntryNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"engine.model: {model} can't be fetched: {error}") from error
