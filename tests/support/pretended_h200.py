"""What vLLM makes of the shipped configurations on an H200, without one: `python -m tests.support.pretended_h200 DIR`.

Runs in the environment of the locked CUDA versions (`make test-full`). A platform class says that it is an H200, and an
empty driver library has the symbols that vLLM's extension modules are linked to. Nothing is computed. The last line is
one JSON object; an import, an argument or a patch that does not fit these versions is an error.
"""

import ctypes
import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from completion_server.config import load_config
from completion_server.engine.vllm.environment import RUNNER
from loadtest.bench.gpu.functional import DRAFTS, VARIANTS
from loadtest.bench.gpu.models import DRAFT_CONTEXT, session_settings, write_models
from tests.support.models import DRAFT as EMBEDDED_DRAFT
from tests.support.models import ROOT

_DRIVER_SYMBOL = re.compile(r" U (cu[A-Z]\w*)")
_NO_DEVICE = 100
_LOCAL = ROOT / "deploy" / "local" / "server.toml"

PROCESSES = (
    "completion_server.engine.vllm.engine",
    "completion_server.engine.vllm.drafts.worker",
    "vllm.v1.engine.core",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu.model_runner",
    "vllm.v1.worker.gpu.spec_decode.ngram.speculator",
)
"""What the server, the engine core and the worker import, with both model runners."""


def load_driver(folder: Path) -> None:
    """Load a driver library that finds no device, so that modules which are linked to it can be imported."""
    packages = Path(str(find_spec("vllm").origin)).parent  # type: ignore[union-attr]
    listed = subprocess.run(
        ["nm", "-D", "--undefined-only", *map(str, packages.rglob("*.so"))], capture_output=True, text=True, check=True
    )
    names = sorted(set(_DRIVER_SYMBOL.findall(listed.stdout)))
    source, library = folder / "driver.c", folder / "libcuda.so.1"
    source.write_text("".join(f"int {name}(void) {{ return {_NO_DEVICE}; }}\n" for name in names), encoding="utf-8")
    subprocess.run(["gcc", "-shared", f"-Wl,-soname,{library.name}", "-o", str(library), str(source)], check=True)
    ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


def pretend() -> None:
    """Make vLLM believe that this machine has an H200, and Triton that it can compile for it."""
    from triton.backends import backends
    from vllm import platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    class PretendedH200(NonNvmlCudaPlatform):  # type: ignore[misc]
        """One H200."""

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
            return DeviceCapability(9, 0)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return "NVIDIA H200"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return 139 * 2**30

        @classmethod
        def device_count(cls) -> int:
            return 1

    platforms.current_platform = PretendedH200()
    backends["nvidia"].driver.is_active = staticmethod(lambda: True)


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of one engine meanwhile."""
    before = {name: os.environ.get(name) for name in (RUNNER, *variables)}
    os.environ.update(variables)
    yield
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def summary(config: Any, locked_reason: str = "") -> dict[str, Any]:
    """Return what decides how an engine runs."""
    scheduler, speculative = config.scheduler_config, config.speculative_config
    return {
        "runner": "newer" if config.use_v2_model_runner else "older",
        "graphs": config.compilation_config.cudagraph_mode.name,
        "is_async": scheduler.async_scheduling,
        "scheduler": str(scheduler.scheduler_cls or "").rpartition(".")[2],
        "drafts": speculative.method if speculative else "",
        "k_by_batch_size": speculative.num_speculative_tokens_per_batch_size if speculative else None,
        "quantization": config.model_config.quantization,
        "step_tokens": scheduler.max_num_batched_tokens,
        "locked_reason": locked_reason,
    }


def served(path: Path | None, *overrides: str) -> dict[str, Any]:
    """Resolve a server's configuration as the server does, up to the start of the engine's processes."""
    from completion_server.app.engine_factory import make_engine_factory

    engine: Any = make_engine_factory(load_config(path, overrides, {}))()
    made: list[tuple[Any, str]] = []
    engine._make_llm = lambda _args, config: made.append((config, engine._locked_reason))
    engine._load()
    return summary(*made[0])


def server_configurations(folder: Path) -> dict[str, tuple[Path | None, tuple[str, ...], dict[str, str]]]:
    """Return the shipped configurations of servers: file, overrides, variables. Models are shapes without weights."""
    models = (f"engine.model={folder / 'target'}", f"engine.draft_model={folder / 'draft'}")
    readme = re.search(
        r"```toml\n(# my-server.toml\n.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    assert readme is not None
    (folder / "my-server.toml").write_text(readme[1], encoding="utf-8")
    assert tomllib.loads(readme[1])["engine"]["draft_model"]
    pod = tomllib.loads((ROOT / "deploy" / "base" / "server" / "server.toml").read_text(encoding="utf-8"))["engine"]
    in_pod = tuple(f"engine.{key}={json.dumps(value)}" for key, value in pod.items())  # its secrets are not here
    small = f"engine.max_model_len={DRAFT_CONTEXT}"
    drafts = f"engine.draft_model={EMBEDDED_DRAFT}"
    return {
        "deploy/local": (_LOCAL, (), {}),
        "deploy/local, draft model": (_LOCAL, (drafts,), {}),
        "deploy/local, no drafts": (_LOCAL, ("engine.num_speculative_tokens=0",), {}),
        "deploy/base": (None, (*in_pod, *models, small), {}),
        "README": (folder / "my-server.toml", (*models, small), {}),
        "bench-gpu sessions": (_LOCAL, tuple(session_settings(folder)), {}),
    } | {
        f"bench-gpu functional, {name}": (_LOCAL, (*DRAFTS, *variant.overrides), variant.env)
        for name, variant in VARIANTS.items()
    }


def check_patches() -> list[str]:
    """Apply the patches of an engine on a GPU to this process; return why some don't fit."""
    from completion_server.engine.vllm import patches

    of_gpu = (*patches.IN_EACH_PROCESS, *patches.WITH_DRAFTS, *patches.WITH_SPANS, *patches.IN_THE_SERVER)
    misfits = [f"{patch.name}: {reason}" for patch in of_gpu if (reason := patch.misfit())]
    for patch in (*patches.IN_EACH_PROCESS, *patches.WITH_DRAFTS):
        patch.apply()
    return misfits


def sum_over_gloo(folder: Path) -> list[float]:
    """Make Gloo groups of one member as vLLM does, and sum over one."""
    import torch

    torch.distributed.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=0, world_size=1)
    total = torch.ones(2)
    torch.distributed.all_reduce(total, group=torch.distributed.new_group([0], backend="gloo"))
    torch.distributed.destroy_process_group()
    return list(total.tolist())


def main(folder: Path) -> dict[str, Any]:
    """Return what was found."""
    load_driver(folder)
    pretend()
    write_models(folder, is_tiny=False)
    found: dict[str, Any] = {"versions": {name: version(name) for name in ("vllm", "torch")}, "configurations": {}}
    for name, (path, overrides, variables) in server_configurations(folder).items():
        with environment(variables):
            found["configurations"][name] = served(path, *overrides)
    found["imported"] = [importlib.import_module(name).__name__ for name in PROCESSES]
    return found | {"misfits": check_patches(), "gloo": sum_over_gloo(folder)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]))) + "\n")
