"""Structured logs on standard error. They never hold code text, prompts or completions."""

import logging
import sys
from dataclasses import dataclass
from typing import Literal

import structlog

from completion_server.core.safe_logging import describe

LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The `[log]` section."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Level of the server's own logs; engine.log_level sets the engine's."""
    format: Literal["auto", "console", "json"] = "auto"
    """"auto" means console on a terminal, else JSON."""


def configure(settings: LogSettings) -> None:
    """Send the log records of the server and of all libraries through one structured handler."""
    is_json = settings.format == "json" or (settings.format == "auto" and not sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _describe_exception,
    ]
    last = structlog.processors.JSONRenderer() if is_json else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("completion_server").setLevel(settings.level.upper())


def _describe_exception(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Render a record's exception without its message, which may quote client text."""
    exc_info = event.pop("exc_info", None)
    text = describe(exc_info[1]) if exc_info and exc_info[1] else event["_record"].exc_text
    if text:
        event["exception"] = text
    return event


def set_level(level: str) -> str:
    """Change the level of the server's own logs and return the previous level.

    Raises:
        ValueError: `level` is not a level.

    """
    if level not in LEVELS:
        msg = f"level: must be one of {', '.join(LEVELS)}, got {level!r}"
        raise ValueError(msg)
    logger = logging.getLogger("completion_server")
    previous = logging.getLevelName(logger.getEffectiveLevel()).lower()
    logger.setLevel(level.upper())
    return previous
