"""Checks of a configured model: where it comes from, and whether prompts and completions fit into its context.

A hub is asked once, because its libraries try for half a minute.
"""

import logging
import ssl
import urllib.request
from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError

from completion_server.config import Config
from completion_server.core.errors import ConfigError
from completion_server.core.model_files import context_length
from completion_server.engine.interface import NGRAM, EngineInfo
from completion_server.engine.revisions import resolve_revisions
from completion_server.engine.settings import EngineSettings
from completion_server.text.prompt.builder import PromptBuilder
from completion_server.text.prompt.edits.builder import EditPrompts
from completion_server.text.prompt.edits.choice import choose_edit_template
from completion_server.text.prompt.loading import load_edit_prompts, load_prompt_builder
from completion_server.text.prompt.settings import MOST_PROMPT_TOKENS
from completion_server.text.prompt.tokens.healing import MAX_TOKENS as MAX_TOKENS_LEFT_OUT

logger = logging.getLogger(__name__)

_OFFLINE = "HF_HUB_OFFLINE"
_DEFAULT_ENDPOINT = "https://huggingface.co"
_TIMEOUT_S = 5.0

_MIN_PROMPT_TOKENS = 64


def require_model(engine: EngineSettings) -> None:
    """Check that a model is set.

    Raises:
        ConfigError: it is not.

    """
    if not engine.model:
        msg = "engine.model: must be set: the path of a model folder, or a hub id such as org/name"
        raise ConfigError(msg)


def check_hub(engine: EngineSettings, environ: MutableMapping[str, str]) -> None:
    """Check that the hub, or its local cache, has the models that are no folders.

    Without a connection to the hub the libraries of this process and of the engine's are told to use the cache alone,
    by the environment. Call this before anything imports them.

    Raises:
        ConfigError: a model is not in the cache, and the hub can't be reached.

    """
    draft = "" if engine.draft_model == NGRAM else engine.draft_model
    models = {"engine.model": (engine.model, engine.revision), "engine.draft_model": (draft, engine.draft_revision)}
    wanted = {key: each for key, each in models.items() if _is_hub_id(each[0])}
    if not wanted or _is_true(environ, _OFFLINE) or _is_true(environ, "VLLM_USE_MODELSCOPE"):
        return
    endpoint = environ.get("HF_ENDPOINT", _DEFAULT_ENDPOINT).rstrip("/")
    reason = _unreachable(endpoint)
    if not reason:
        return
    environ[_OFFLINE] = "1"

    for key, (model, revision) in wanted.items():
        if not _is_cached(model, revision):
            msg = f"{key}: {model} is no folder and not in the hub's cache, and {endpoint} can't be reached: {reason}"
            raise ConfigError(msg)
    logger.warning("engine.model: %s can't be reached (%s); the cached model is used", endpoint, reason)


def _is_hub_id(model: str) -> bool:
    return bool(model) and "://" not in model and not Path(model).exists()


def _is_true(environ: Mapping[str, str], key: str) -> bool:
    return environ.get(key, "").upper() in {"1", "ON", "YES", "TRUE"}  # as huggingface_hub reads its own


def _is_cached(model: str, revision: str | None) -> bool:
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(model, revision=revision, local_files_only=True)
    except OSError:  # its LocalEntryNotFoundError is one
        return False
    return True


def _unreachable(endpoint: str) -> str:
    """Return why a hub can't be reached; "" if it can, or fails in another way, which its own libraries judge."""
    try:
        urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=_TIMEOUT_S).close()
    except HTTPError:
        return ""  # it answered
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)  # an URLError has the cause
        if isinstance(reason, OSError) and not isinstance(reason, ssl.SSLError):
            return reason.strerror or str(reason)
    return ""


def with_revisions(config: Config) -> Config:
    """Return a configuration with the revisions of the models' files; see `resolve_revisions`.

    Raises:
        ConfigError: a folder has another revision than the configuration names, or can't be read.

    """
    return replace(config, engine=resolve_revisions(config.engine))


def load_prompts(config: Config) -> PromptBuilder:
    """Return the prompt builder for the configured model.

    Raises:
        ConfigError: the model can't be read, or leaves no room for a prompt.

    """
    return load_prompt_builder(
        config.engine.model,
        revision=config.engine.revision,
        max_prompt_tokens=prompt_budget(config),
        settings=config.prompt,
    )


def load_edits(config: Config) -> EditPrompts | None:
    """Return the prompts for next edits; None if the configured model does not write them.

    Raises:
        ConfigError: the model can't be read, leaves no room for a prompt, or lacks a marker of the configured template.

    """
    engine = config.engine
    if choose_edit_template(engine.model, config.prompt) is None:
        return None
    return load_edit_prompts(
        engine.model, revision=engine.revision, max_prompt_tokens=_edit_budget(config), settings=config.prompt
    )


def prompt_budget(config: Config) -> int:
    """Return the token budget of a prompt: the model's context length minus a whole completion.

    Raises:
        ConfigError: no model is set, it can't be read, or it leaves no room for a prompt.

    """
    require_model(config.engine)
    return _budget(config, _completion_tokens(config), "limits.max_tokens")


def _completion_tokens(config: Config) -> int:
    """Return the most tokens that the engine computes for a completion."""
    return config.limits.max_tokens + (MAX_TOKENS_LEFT_OUT if config.prompt.token_healing else 0)


def _edit_budget(config: Config) -> int:
    return _budget(config, config.limits.max_tokens_next_edit, "limits.max_tokens_next_edit")


def _budget(config: Config, num_tokens: int, limit: str) -> int:
    """Return the budget of a prompt before an answer of `num_tokens`, which `limit` allows."""
    engine = config.engine
    model_len = engine.max_model_len or context_length(engine.model, engine.revision)
    # Speculation looks up to K tokens beyond the completion's last.
    room = model_len - num_tokens - engine.num_speculative_tokens
    if room < _MIN_PROMPT_TOKENS:
        msg = f"{limit}: {num_tokens} leaves {room} of the model's {model_len} tokens for a prompt"
        raise ConfigError(msg)
    return min(config.prompt.max_prompt_tokens or MOST_PROMPT_TOKENS, room)


def check_fits(info: EngineInfo, config: Config) -> None:
    """Check that an engine can hold the largest prompt and completion, and heal prompts if it has to.

    Raises:
        ConfigError: a whole prompt and a whole completion don't fit, or it can't heal.

    """
    if config.prompt.token_healing and not info.can_heal:
        msg = "prompt.token_healing: must be false with this vLLM or its other scheduler (engine.vllm.scheduler_cls)"
        raise ConfigError(msg)
    asked = prompt_budget(config) + _completion_tokens(config)
    if choose_edit_template(config.engine.model, config.prompt) is not None:
        asked = max(asked, _edit_budget(config) + config.limits.max_tokens_next_edit)
    asked += info.num_speculative_tokens
    if asked > info.max_model_len:
        msg = f"engine.max_model_len: the engine holds {info.max_model_len} tokens, but a request may need {asked}"
        raise ConfigError(msg)
