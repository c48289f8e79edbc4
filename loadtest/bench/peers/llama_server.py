"""llama.cpp's server as a contestant, on the same weights in its own format."""

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtest.bench.runner.contest import Contestant
from loadtest.processes.child import Child, StartError, free_port, is_http_ok

_START_S = 120.0
_CONVERTER = Path(__file__).parent / "gguf_model.py"


class LlamaServer(Contestant):
    """A running `llama-server`."""

    name = "llama.cpp"

    def __init__(self, binary: Path, config: Mapping[str, Any]) -> None:
        """Convert the model of a server's effective configuration, and serve it with as many slots.

        Raises StartError if the model can't be converted, or the server did not start.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="llama-server-")
        port = free_port()
        self.host = f"127.0.0.1:{port}"
        model = Path(self._folder.name) / "model.gguf"
        try:
            _convert(binary, config["engine"]["model"], model)
        except BaseException:
            self._folder.cleanup()
            raise
        child, url = Child("llama-server", _command(binary, model, port, config)), f"http://{self.host}/health"
        self._begin(child, lambda child: child.wait_until(lambda: is_http_ok(url), _START_S))

    def stop(self) -> None:
        """Stop the server."""
        self._child.stop()
        self._folder.cleanup()


def _command(binary: Path, model: Path, port: int, config: Mapping[str, Any]) -> list[str]:
    """Return the command: its own defaults, but a slot for each sequence that the server's engine takes."""
    slots, length = int(config["engine"]["max_num_seqs"]), int(config["engine_args"].get("max_model_len") or 1024)
    return [
        str(binary), "--model", str(model), "--host", "127.0.0.1", "--port", str(port),
        "--parallel", str(slots), "--ctx-size", str(slots * length), "--cache-reuse", "256", "--no-webui",
    ]  # fmt: skip


def _convert(binary: Path, model: str, out: Path) -> None:
    """Convert a model folder with the Python of the environment that llama-server was built in, which has gguf."""
    python = binary.parent / "python"
    command = [str(python if python.exists() else sys.executable), str(_CONVERTER), model, str(out)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StartError(f"llama.cpp: {model} can't be converted:\n{done.stderr.strip()}")
