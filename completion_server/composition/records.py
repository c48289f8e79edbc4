"""Builds the usage records and the audit log of a server. Part of the composition root."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry

from completion_server.config import Config
from completion_server.core.events import Emit, Event
from completion_server.records.audit import AuditWriter
from completion_server.records.chain import Sealer
from completion_server.records.files import RotatingFile
from completion_server.records.pseudonyms import Pseudonyms
from completion_server.records.secrets import read_secret
from completion_server.records.usage import UsageWriter
from completion_server.records.writer import RecordWriter
from completion_server.state.secret import Secret
from completion_server.telemetry.quality import model_name
from completion_server.telemetry.records import RecordsCollector

logger = logging.getLogger(__name__)

_BYTES_PER_MB = 1_000_000


class Records:
    """The records of one server that are switched on."""

    def __init__(self, config: Config, registry: CollectorRegistry, unix_s: Callable[[], float] = time.time) -> None:
        """Prepare; nothing is written before `start`. `unix_s` returns Unix time in seconds."""
        self._config = config
        self._registry = registry
        self._unix_s = unix_s
        self._writers: list[RecordWriter] = []

    def heard_by(self, emit: Emit) -> Emit:
        """Return an `emit` that also passes events to the records; `emit` itself if none are switched on."""
        settings = self._config.records
        if not settings.usage_file and not settings.audit_file:
            return emit

        def emit_both(event: Event) -> None:
            emit(event)
            now_s = self._unix_s()
            for writer in self._writers:
                writer.handle(event, now_s)

        return emit_both

    def start(self, secret: Secret, stack: contextlib.AsyncExitStack) -> None:
        """Write records from now on, until `stack` is closed. `secret` is that of the replicas.

        Raises:
            ConfigError: a secret can't be used, or the audit log can't be continued.

        """
        settings = self._config.records
        writers = [self._usage_writer(secret)] if settings.usage_file else list[RecordWriter]()
        if settings.audit_file:
            writers.append(self._audit_writer())
        if not writers:
            return
        for writer in writers:
            writer.start()
            stack.push_async_callback(asyncio.to_thread, writer.close)
        self._writers = writers
        collector = RecordsCollector(lambda: {each.kind: (each.num_lost, each.is_failing) for each in writers})
        self._registry.register(collector)
        stack.callback(self._registry.unregister, collector)

    def _usage_writer(self, secret: Secret) -> RecordWriter:
        config, settings = self._config, self._config.records
        if settings.pseudonym_secret_file:
            key = read_secret("records.pseudonym_secret_file", Path(settings.pseudonym_secret_file))
        else:
            key = secret.derive("usage pseudonyms")
            if not config.redis.secret_file:
                logger.warning(
                    "records.usage_file: users' pseudonyms can be guessed without records.pseudonym_secret_file"
                )
        revision = config.engine.revision
        model = model_name(config.engine.model) + (f"@{revision}" if revision else "")
        file = self._file(settings.usage_file)
        return UsageWriter(file, Pseudonyms(key), model=model, region=config.server.region)

    def _audit_writer(self) -> RecordWriter:
        settings = self._config.records
        secret_file = settings.audit_secret_file
        sealer = Sealer(read_secret("records.audit_secret_file", Path(secret_file)) if secret_file else b"")
        writer = AuditWriter(self._file(settings.audit_file), sealer, unix_s=self._unix_s)
        state = writer.state
        logger.info("the audit log %s goes on after line %d, hash %s", settings.audit_file, state.sequence, state.hash)
        return writer

    def _file(self, path: str) -> RotatingFile:
        settings = self._config.records
        return RotatingFile(Path(path), int(settings.max_file_mb * _BYTES_PER_MB), settings.max_files)
