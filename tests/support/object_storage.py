"""An S3 server on loopback: moto's, in a process of its own. It keeps all in memory and checks no signature."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.redis_servers import free_port, wait_until

WITHIN_S = 60.0
BUCKET = "models"


@dataclass(frozen=True)
class ObjectStorage:
    """A server with one bucket."""

    url: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a client finds it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_EC2_METADATA_DISABLED": "true",
            "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
        }

    def put(self, file: Path, name: str) -> str:
        """Store a file, and return the address of the folder that it is in."""
        with httpx.Client(base_url=self.url) as client:
            client.put(f"/{BUCKET}/{name}", content=file.read_bytes()).raise_for_status()
        return f"s3://{BUCKET}/{Path(name).parent}/"


@contextmanager
def object_storage() -> Iterator[ObjectStorage]:
    """Run a server that has an empty bucket."""
    port = free_port()
    found = ObjectStorage(f"http://127.0.0.1:{port}")
    command = (sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: _answers(found.url), WITHIN_S)
            httpx.put(f"{found.url}/{BUCKET}").raise_for_status()
            yield found
        finally:
            process.kill()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).is_success
    except httpx.TransportError:
        return False
