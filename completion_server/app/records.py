"""Builds the usage records and the audit log of a server. Part of the composition root."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter

from completion_server.config import Config
from completion_server.core.events import Emit, Event
from completion_server.ops.quality import model_name
from completion_server.ops.records.audit import AuditRecords
from completion_server.ops.records.record_log import Put, RecordLog
from completion_server.ops.records.usage import UsageRecords
from completion_server.state.secret import Secret

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 64_000_000
"""A file of about this size is closed, and gets the suffix .1; older ones get the next."""
MAX_FILES = 100
"""Closed files that are kept; the oldest go first."""


class Records:
    """The records of one server that are switched on."""

    def __init__(self, config: Config, registry: CollectorRegistry, unix_s: Callable[[], float] = time.time) -> None:
        """Prepare; nothing is written before `start`. `unix_s` returns Unix time in seconds."""
        self._config = config
        self._unix_s = unix_s
        self._handlers: list[Callable[[Event, float], None]] = []
        files = {"usage": config.records.usage_file, "audit": config.records.audit_file}
        self._files = {kind: Path(name) for kind, name in files.items() if name}
        if self._files:
            lost = "Records that were dropped: they could not be written, as on a full disk, or too many waited."
            self._lost = Counter("completion_records_lost", lost, ["kind"], registry=registry)

    def heard_by(self, emit: Emit) -> Emit:
        """Return an `emit` that also passes events to the records; `emit` itself if none are switched on."""
        if not self._files:
            return emit

        def emit_both(event: Event) -> None:
            emit(event)
            now_s = self._unix_s()
            for handle in self._handlers:
                handle(event, now_s)

        return emit_both

    def start(self, secret: Secret, stack: contextlib.AsyncExitStack) -> None:
        """Write records from now on, until `stack` is closed. `secret` is that of the replicas."""
        if "usage" in self._files:
            self._handlers.append(self._usage(self._open("usage", stack), secret).handle)
        if "audit" in self._files:
            audit = AuditRecords(self._open("audit", stack))
            stack.callback(audit.flush)
            self._handlers.append(audit.handle)

    def _open(self, kind: str, stack: contextlib.AsyncExitStack) -> Put:
        log = RecordLog(self._files[kind], MAX_FILE_BYTES, MAX_FILES, self._lost.labels(kind).inc)
        log.start()
        stack.push_async_callback(asyncio.to_thread, log.close)
        return log.put_nowait

    def _usage(self, put: Put, secret: Secret) -> UsageRecords:
        config = self._config
        if not config.redis.secret_file:
            logger.warning("records.usage_file: users' pseudonyms can be guessed without redis.secret_file")
        model, revision = model_name(config.engine.model), config.engine.revision
        key = secret.derive("usage pseudonyms")
        model = f"{model}@{revision}" if revision else model
        return UsageRecords(put, key, model=model, region=config.server.region)
