"""Loads one frozen, validated configuration: file < environment < flags. The only reader of the environment.

Each package declares its own section as a frozen dataclass; this module combines them.
"""

import dataclasses
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from completion_server.auth.settings import AuthSettings
from completion_server.core.errors import ConfigError
from completion_server.core.sections import read_section
from completion_server.engine.interface import NGRAM
from completion_server.engine.settings import EngineSettings, SpeculationSettings
from completion_server.engine.speculation.schedule import ScheduleError, parse_schedule
from completion_server.ops.logs import LogSettings
from completion_server.ops.records.settings import RecordSettings
from completion_server.ops.tenants import MetricsSettings
from completion_server.ops.tracing.settings import TraceSettings
from completion_server.requests.limits.settings import AdmissionSettings, LimitSettings, ServerSettings
from completion_server.requests.scheduling.settings import SchedulingSettings, ShedSettings
from completion_server.state.settings import CacheSettings, RedisSettings
from completion_server.text.prompt.edits.choice import choose_edit_template
from completion_server.text.prompt.settings import PromptSettings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Section = TypeVar("Section", bound="DataclassInstance")

_SCRIPTED_MODEL = Path(__file__).parents[1] / "target_model" / "embedded"
"""The model of which a scripted engine takes the tokenizer if none is set; it is installed with the server."""

ENV_PREFIX = "COMPLETION_SERVER__"
"""COMPLETION_SERVER__ENGINE__MODEL sets engine.model."""


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that an operator can set."""

    server: ServerSettings = ServerSettings()
    limits: LimitSettings = LimitSettings()
    admission: AdmissionSettings = AdmissionSettings()
    auth: AuthSettings = AuthSettings()
    scheduling: SchedulingSettings = SchedulingSettings()
    shed: ShedSettings = ShedSettings()
    prompt: PromptSettings = PromptSettings()
    engine: EngineSettings = EngineSettings()
    speculation: SpeculationSettings = SpeculationSettings()
    redis: RedisSettings = RedisSettings()
    cache: CacheSettings = CacheSettings()
    metrics: MetricsSettings = MetricsSettings()
    log: LogSettings = LogSettings()
    traces: TraceSettings = TraceSettings()
    records: RecordSettings = RecordSettings()


def load_config(path: Path | None, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Config:
    """Read the file, override it with the environment and then with `overrides` ("section.key=value"), and validate.

    Raises:
        ConfigError: the configuration can't be used; the message has one line for each fault.

    """
    tree = _read(path) if path else {}
    for name, text in (os.environ if environ is None else environ).items():
        if name.startswith(ENV_PREFIX):
            _put(tree, name.removeprefix(ENV_PREFIX).lower().split("__"), text, name)
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator:
            msg = f"--set {override}: must be section.key=value"
            raise ConfigError(msg)
        _put(tree, key.strip().split("."), text.strip(), f"--set {key}")
    config = _resolve_paths(read_section(Config, tree), path.parent if path else Path())
    if "draft_model" not in tree.get("engine", {}):
        config = _draft_next_edits(config)
    _check_across(config)
    return config


def _draft_next_edits(config: Config) -> Config:
    """Return a configuration that drafts from the prompt if the model writes next edits, which mostly repeat it."""
    engine = config.engine
    if choose_edit_template(engine.model, config.prompt) is None or "speculative_config" in engine.vllm:
        return config
    return dataclasses.replace(config, engine=dataclasses.replace(engine, draft_model=NGRAM))


def _check_across(config: Config) -> None:
    """Check values that depend on another section.

    Raises:
        ConfigError: the message names the key.

    """
    slots, seqs = config.scheduling.max_slots, config.engine.max_num_seqs
    if config.traces.endpoint and "otlp_traces_endpoint" in config.engine.vllm:
        raise ConfigError("engine.vllm.otlp_traces_endpoint: must not be set beside traces.endpoint, which sets it")
    if config.auth.takes_certificates and not config.server.tls.client_ca:
        raise ConfigError("auth.certificate_user: needs server.tls.client_ca, which verifies the certificates")
    if slots > seqs:
        msg = f"scheduling.max_slots: must be at most engine.max_num_seqs ({seqs}), got {slots}"
        raise ConfigError(msg)
    try:
        if config.speculation.schedule:
            parse_schedule(config.speculation.schedule, config.engine.max_num_speculative_tokens)
    except ScheduleError as error:
        msg = f"speculation.{error}"
        raise ConfigError(msg) from error


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path}: can't be read: {error}"
        raise ConfigError(msg) from error
    except tomllib.TOMLDecodeError as error:
        msg = f"{path}: not valid TOML: {error}"
        raise ConfigError(msg) from error


def _put(tree: dict[str, Any], keys: Sequence[str], text: str, origin: str) -> None:
    *sections, last = keys
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            msg = f"{origin}: {section} is not a section"
            raise ConfigError(msg)
    try:
        tree[last] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        tree[last] = text


_FILES = frozenset((
    "certificate", "key", "client_ca", "ca", "password_file", "sentinel_password_file", "secret_file", "jwks_file",
    "crl_file", "quotas_file",
))  # fmt: skip
"""Keys whose values are paths of files, in any section."""
_FILES_TO_COME = frozenset(("keys_file",))
"""Keys whose values are paths of files that may not exist yet."""
_WRITTEN_FILES = frozenset(("usage_file", "audit_file"))
"""Keys whose values are paths of files that the server writes."""


def _resolve_paths(config: Config, base: Path) -> Config:
    """Resolve relative paths against `base`, the folder of the configuration file."""
    engine = config.engine
    model = engine.model or (str(_SCRIPTED_MODEL) if engine.kind == "scripted" and _SCRIPTED_MODEL.is_dir() else "")
    engine = dataclasses.replace(
        engine,
        model=_model("engine.model", model, base),
        draft_model=_model("engine.draft_model", engine.draft_model, base),
    )
    return _resolve_files(dataclasses.replace(config, engine=engine), base, "")


def _resolve_files(section: Section, base: Path, prefix: str) -> Section:
    """Return a section, and those in it, with the paths of its files resolved."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            changes[field.name] = _resolve_files(value, base, f"{prefix}{field.name}.")
        elif field.name in _FILES:
            changes[field.name] = _file(f"{prefix}{field.name}", value, base)
        elif field.name in _FILES_TO_COME and value:
            changes[field.name] = str((base / Path(value).expanduser()).resolve())
        elif field.name in _WRITTEN_FILES:
            changes[field.name] = _written_file(f"{prefix}{field.name}", value, base)
    return dataclasses.replace(section, **changes) if changes else section


def _model(key: str, name: str, base: Path) -> str:
    """Return a model's absolute path, or its hub id unchanged."""
    if not name or (key == "engine.draft_model" and name == NGRAM):
        return name
    path = base / Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            msg = f"{key}: {path} holds no config.json, so it is no model folder"
            raise ConfigError(msg)
        return str(path.resolve())
    is_path = name.startswith((".", "/", "~")) or name.count("/") != 1
    if is_path:
        msg = f"{key}: no folder {path}; give the path of a model folder, or a hub id such as org/name"
        raise ConfigError(msg)
    return name


def _file(key: str, name: str, base: Path) -> str:
    if not name:
        return name
    path = base / Path(name).expanduser()
    if not path.is_file():
        msg = f"{key}: no file {path}"
        raise ConfigError(msg)
    return str(path.resolve())


def _written_file(key: str, name: str, base: Path) -> str:
    if not name:
        return name
    path = (base / Path(name).expanduser()).absolute()
    if path.is_dir() or not path.parent.is_dir():
        msg = f"{key}: must name a file in a folder that is there, got {path}"
        raise ConfigError(msg)
    return str(path)
