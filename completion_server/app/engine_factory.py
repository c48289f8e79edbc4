"""Chooses the engine that a configuration names, and imports vLLM only if it is that one."""

import importlib
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from completion_server.app.models import require_model
from completion_server.config import Config
from completion_server.core.model_files import load_tokenizer
from completion_server.engine.interface import Engine
from completion_server.engine.settings import EngineSettings
from completion_server.engine.vllm import process as vllm_process

if TYPE_CHECKING:
    from completion_server.engine.scripted.model import Script


def make_engine_factory(config: Config) -> Callable[[], Engine]:
    """Return the factory of the configured kind of engine.

    Raises:
        ConfigError: the settings don't fit that kind.

    """
    settings = config.engine
    if settings.kind == "scripted":
        from completion_server.engine.scripted.engine import ScriptedEngine

        script = _script(config)
        return lambda: ScriptedEngine.from_settings(settings, script)
    require_model(settings)
    _import_vllm("arguments", settings).engine_args(settings, traces_endpoint=config.traces.endpoint)
    vllm = _import_vllm("engine", settings)
    return lambda: vllm.VllmEngine(settings, traces_endpoint=config.traces.endpoint)


def _script(config: Config) -> "Script":
    """Return what the scripted engine writes."""
    from completion_server.engine.scripted.engine import plausible_code

    if not config.prompt.next_edit_template:
        return plausible_code
    from completion_server.engine.scripted.edit_model import edit_script

    return edit_script(_decoder(config.engine), otherwise=plausible_code)


def engine_arguments(config: Config) -> dict[str, Any]:
    """Return the arguments that vLLM's engine would get, empty for an engine of another kind.

    Raises:
        ConfigError: vLLM does not know one of them, or would not load the server's plugins.

    """
    settings = config.engine
    if settings.kind != "vllm":
        return {}
    vllm_process.check_plugins()
    arguments: dict[str, Any] = _import_vllm("arguments", settings).engine_args(
        settings, traces_endpoint=config.traces.endpoint
    )
    return arguments


def _import_vllm(name: str, settings: EngineSettings) -> ModuleType:
    """Import a module of `engine.vllm` and return it. The import takes seconds, so it happens only if needed."""
    vllm_process.prepare(settings.log_level, settings.cpu_kv_cache_gib, settings.model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of imports, which an operator can't fix
        return importlib.import_module(f"completion_server.engine.vllm.{name}")


def _decoder(settings: EngineSettings) -> Callable[[Sequence[int]], str]:
    """Return what decodes the tokens of the configured model, which is loaded when it is first needed."""

    @cache
    def tokenizer() -> Tokenizer:
        return load_tokenizer(settings.model, settings.revision)

    return lambda ids: str(tokenizer().decode(ids, skip_special_tokens=False))
