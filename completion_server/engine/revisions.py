"""The revision of a model tells two sets of its files apart: a digest of a folder, or the commit of a hub's model.

A server resolves its revisions once, before its parts are built, so that all of them name and load the same files.
"""

from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from completion_server.core.errors import ConfigError
from completion_server.engine.fingerprint import model_fingerprint
from completion_server.engine.interface import NGRAM
from completion_server.engine.settings import EngineSettings

_DIGEST_BYTES = 8


def resolve_revisions(settings: EngineSettings) -> EngineSettings:
    """Return settings whose revisions are those of the models' files.

    Reads files and may ask a hub, so call it where nothing waits. Settings that are resolved stay as they are, unless
    files were replaced.

    Raises:
        ConfigError: a folder has another revision than the settings name, or can't be read.

    """
    draft = "" if settings.draft_model == NGRAM else settings.draft_model
    weights = str(settings.vllm.get("model_weights") or "")
    return replace(
        settings,
        revision=_resolve("engine.revision", settings.model, settings.revision, weights),
        draft_revision=_resolve("engine.draft_revision", draft, settings.draft_revision),
    )


def folder_revision(model: Path, weights: str = "") -> str:
    """Return the revision of a model folder: "files-" and 16 digits of its fingerprint.

    `weights` is the address of weights that are elsewhere; "" if they are in the folder.

    Raises:
        OSError: a file can't be read.

    """
    found = blake2b(model_fingerprint(str(model)).encode(), digest_size=_DIGEST_BYTES)
    found.update(weights.encode())
    return f"files-{found.hexdigest()}"  # digits alone could be read as a number in TOML


def _resolve(key: str, model: str, named: str | None, weights: str = "") -> str | None:
    if not model:
        return None
    folder = Path(model)
    if not folder.is_dir():
        return _commit(model, named)
    try:
        found = folder_revision(folder, weights)
    except OSError as error:
        raise ConfigError(f"{key}: {model} can't be read: {error}") from error
    if named not in {None, found}:
        raise ConfigError(f"{key}: must be {found}, the revision of the files in {model}, got {named}")
    return found


def _commit(model: str, named: str | None) -> str | None:
    """Return the commit of a hub's model; the name as given if neither the hub nor its cache has it.

    The libraries that load the model then say why.
    """
    from huggingface_hub import hf_hub_download  # only a hub id needs it

    try:
        return Path(hf_hub_download(model, "config.json", revision=named)).parent.name
    except (OSError, ValueError):
        return named
