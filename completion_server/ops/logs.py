"""Structured logs on standard error. They never hold code text, prompts or completions."""

import logging
import sys
from dataclasses import dataclass
from typing import Literal, TextIO

import structlog

from completion_server.core.safe_logging import describe

LEVELS = ("debug", "info", "warning", "error")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The `[log]` section."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Level of the server's own logs; VLLM_LOGGING_LEVEL sets vLLM's."""
    format: Literal["auto", "console", "json"] = "auto"
    """"auto" means console on a terminal, else JSON."""


class CountingHandler(logging.StreamHandler[TextIO]):
    """Writes records to a stream. Those that it can't write, as on a full disk, are counted, and the server goes on."""

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream`."""
        super().__init__(stream)
        self.num_lost = 0
        """Records that could not be written."""
        self._num_told = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; after the first that can be written again, tell how many were lost."""
        num_lost = self.num_lost
        super().emit(record)
        if self._num_told < self.num_lost == num_lost:
            num_untold, self._num_told = num_lost - self._num_told, num_lost
            logger.warning("%d log records could not be written", num_untold)

    def handleError(self, record: logging.LogRecord) -> None:
        """Count a record that could not be written."""
        del record
        self.num_lost += 1


def num_lost_records() -> int:
    """Return how many log records this process could not write."""
    return sum(each.num_lost for each in logging.getLogger().handlers if isinstance(each, CountingHandler))


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
    handler = CountingHandler(sys.stderr)
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
