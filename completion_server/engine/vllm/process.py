"""Sets up the engine's own processes: environment, process group, priority, logs, and end with the server.

Imports nothing of vLLM: `prepare` must run before vLLM is imported, and vLLM itself calls `register` in each of its
processes, as one of its general plugins.
"""

import importlib.util
import logging
import os
import sys
import threading
import time
from importlib.metadata import entry_points
from multiprocessing import parent_process
from pathlib import Path

from completion_server.core import safe_logging
from completion_server.core.errors import ConfigError
from completion_server.engine.vllm import environment, patches

ENABLE_ENV = "COMPLETION_SERVER_ENGINE_CHILD"
"""Set by the server for the processes that it starts: the plugin does nothing in other uses of vLLM."""

PARENT_ENV = "COMPLETION_SERVER_ENGINE_PARENT"
"""The id of the process that starts an engine's process."""

NICE_ENV = "COMPLETION_SERVER_ENGINE_NICE"
"""Niceness of the engine's processes: the server's own and `engine.nice`."""

_MOST_NICE = 19

PLUGINS = ("completion_server", "completion_server_on_cpu")
"""Names of the server's plugins for vLLM's processes. Without the second one sampling on a CPU is silently wrong."""

PLUGIN_GROUP = "vllm.general_plugins"

_PARENT_POLL_S = 1.0

_TRITON_LOGGER = "torch._library.triton"
"""torch's logger that warns in every process of an engine on a CPU that there is no Triton."""

_DUMPS = "vllm.logging_utils.dump_input"
"""vLLM's logger for the input of a failed step. The input has draft tokens, which continue a user's text."""


def yield_to_server(nice: int) -> None:
    """Let the engine's processes start with `nice`, 0 to 19, more than this process has."""
    os.environ[NICE_ENV] = str(min(_MOST_NICE, os.nice(0) + nice))


def prepare(log_level: str, cpu_kv_cache_gib: int, model: str) -> None:
    """Set the environment variables of vLLM and its processes, except those that the operator has set.

    Without them vLLM would log to standard output, which belongs to the server.
    """
    os.environ[ENABLE_ENV] = "1"
    if _has_module("torch", "_library/triton.py"):  # torch refuses names that it does not have
        os.environ.setdefault("TORCH_LOGS", f"-{_TRITON_LOGGER}")
    os.environ[PARENT_ENV] = str(os.getpid())
    environment.set_defaults()
    environment.use_all_cores(model)
    for name, value in (
        ("VLLM_LOGGING_LEVEL", log_level.upper()),
        ("VLLM_LOGGING_STREAM", "ext://sys.stderr"),
        ("VLLM_CPU_KVCACHE_SPACE", str(cpu_kv_cache_gib)),
        ("VLLM_NO_USAGE_STATS", "1"),
        ("TORCH_CPP_LOG_LEVEL", "ERROR"),
        ("PYTHONWARNINGS", "ignore"),
    ):
        os.environ.setdefault(name, value)


def check_plugins() -> None:
    """Check that vLLM will load the server's plugins.

    Raises:
        ConfigError: VLLM_PLUGINS leaves one out, or one is not installed.

    """
    named = os.environ.get("VLLM_PLUGINS")
    installed = {entry.name for entry in entry_points(group=PLUGIN_GROUP)}
    for name in PLUGINS:
        if named is not None and name not in named.split(","):
            msg = f"VLLM_PLUGINS: must be unset or contain {','.join(PLUGINS)}, which correct vLLM; got {named!r}"
            raise ConfigError(msg)
        if name not in installed:
            msg = (
                f"completion-server is not installed for {sys.executable}, or not whole: vLLM finds no plugin {name},"
                " which corrects it. In a checkout: pip install --no-deps --no-build-isolation --editable ."
            )
            raise ConfigError(msg)


def _has_module(package: str, path: str) -> bool:
    """Return whether an installed package has a file, without importing it."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None and (Path(spec.origin).parent / path).is_file()


def register() -> None:
    """Set up a process of the engine; vLLM calls this as a plugin in each of its processes.

    The process leaves the server's process group: a terminal's Ctrl-C and a process manager's signal to the group are
    for the server, which drains through this engine. It ends with the server, because a killed server can't stop its
    engine. It logs no client text, and uses no CPU time while the engine is idle.
    """
    if not _is_engine_process():
        return
    keep_client_text_out_of_logs()
    end_with_parent()
    os.setpgid(0, 0)
    lower_priority()
    for patch in patches.IN_EACH_PROCESS:
        patch.apply()


def lower_priority() -> None:
    """Give this process the niceness that all of the engine's have.

    A worker begins with its engine core's niceness. If it added its own, the core, which polls while the worker
    computes, would take three quarters of a processor that they share.
    """
    os.nice(max(0, int(os.environ.get(NICE_ENV, "0")) - os.nice(0)))


def keep_client_text_out_of_logs() -> None:
    """Make this process log exceptions without their messages, which may contain token ids, and no scheduler output.

    Errors at start are logged in full: no request has arrived by then.
    """
    safe_logging.install(keep_startup_failures=True)
    logging.getLogger(_DUMPS).addFilter(_drop)


def _drop(_record: logging.LogRecord) -> bool:
    return False


def end_with_parent() -> None:
    """End this process when its parent ends; only in an engine's process.

    The parent's id comes from the environment: `os.getppid()` is wrong if the parent has ended meanwhile, and
    `parent_process()` is None while multiprocessing still imports the main module.
    """
    parent_id, own_id = os.environ.get(PARENT_ENV), str(os.getpid())
    if not _is_engine_process() or parent_id is None or parent_id == own_id:
        return
    os.environ[PARENT_ENV] = own_id  # for this process's own children, and to start only one watch
    threading.Thread(target=_watch_parent, args=(int(parent_id),), daemon=True, name="parent-watch").start()


def _is_engine_process() -> bool:
    is_child = parent_process() is not None or "--multiprocessing-fork" in sys.orig_argv
    return is_child and ENABLE_ENV in os.environ


def _watch_parent(parent_id: int) -> None:
    while os.getppid() == parent_id:
        time.sleep(_PARENT_POLL_S)
    os._exit(1)
