"""Checks where models come from. A hub is asked once, because its libraries try for half a minute."""

import logging
import ssl
import urllib.request
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from urllib.error import HTTPError

from completion_server.core.errors import ConfigError
from completion_server.engine.interface import NGRAM
from completion_server.engine.settings import EngineSettings

logger = logging.getLogger(__name__)

_OFFLINE = "HF_HUB_OFFLINE"
_DEFAULT_ENDPOINT = "https://huggingface.co"
_TIMEOUT_S = 5.0


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
    models = {"engine.model": (engine.model, engine.revision), "engine.draft_model": (draft, None)}
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
