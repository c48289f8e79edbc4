"""Checks custom resources against the types of their projects, from the npm packages of requirements/crd-schemas.

The packages are made from the projects' own Go types. Two checks, because each sees what the other can't: the packages'
validators know values (patterns, enums, what is required), TypeScript's compiler knows which fields there are.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.kustomize import TOOLS, Object, name_of, report

_PACKAGES = {
    "argoproj.io": ("argo-cd", "argo-rollouts"),
    "cert-manager.io": ("cert-manager",),
    "gateway.envoyproxy.io": ("envoy-gateway",),
    "gateway.networking.k8s.io": ("gateway-api",),
    "keda.sh": ("keda",),
    "kustomize.toolkit.fluxcd.io": ("flux-cd",),
    "monitoring.coreos.com": ("prometheus-operator",),
    "source.toolkit.fluxcd.io": ("flux-cd",),
}
"""Where the types of an API group are: in one of these."""
_OPTIONS = {"noEmit": True, "skipLibCheck": True, "strict": True, "target": "es2022", "types": []}
_MODULES = {"module": "esnext", "moduleResolution": "bundler"}
_TIMEOUT_S = 120

_VALIDATE = """
for (const [path, object] of JSON.parse(process.env.OBJECTS)) {
  const { [object.kind]: Model } = await import(path + ".js");
  const name = `${object.kind}/${object.metadata.name}`;
  try { new Model(object).validate(); } catch (error) { console.log(`${name}: ${error.message}`); }
}
"""


def is_known(found: Object) -> bool:
    """Return whether there are types for an object."""
    return found["apiVersion"].partition("/")[0] in _PACKAGES


def require_types() -> Path:
    """Return the folder of the npm packages. Without it a laptop skips the test; a build server fails."""
    folder = TOOLS / "crd-schemas" / "node_modules"
    if shutil.which("node") is None:
        report("node not found")
    if not (folder / "typescript").exists():
        report(f"{folder} not found; make deploy-tools installs it")
    return folder


def faults(objects: Sequence[Object], folder: Path) -> list[str]:
    """Return what is wrong with custom resources, "Kind/name: ..." each; [] if nothing is.

    `folder` is an empty one for the compiler's input.
    """
    types = require_types()
    modules = [(str(_module(each, types)), each) for each in objects]
    environment = {"PATH": "/usr/bin:/bin:/usr/local/bin", "OBJECTS": json.dumps(modules)}
    validated = _node("--input-type=module", "--eval", _VALIDATE, env=environment)
    assert validated.returncode == 0, validated.stderr
    # As literals of their types the objects may have no other fields.
    lines = [
        f"import type {{ I{found['kind']} as T{index} }} from {json.dumps(path)};\n"
        f"export const o{index}: T{index} = {json.dumps(found)};\n"
        for index, (path, found) in enumerate(modules)
    ]
    (folder / "objects.ts").write_text("".join(lines), encoding="utf-8")
    project = {"compilerOptions": _OPTIONS | _MODULES, "files": ["objects.ts"]}
    (folder / "tsconfig.json").write_text(json.dumps(project), encoding="utf-8")
    compiled = _node(str(types / "typescript" / "bin" / "tsc"), "--project", str(folder))
    located = re.findall(r"^.*?objects\.ts\((\d+),\d+\): error TS\d+: (.*)$", compiled.stdout, re.MULTILINE)
    assert bool(located) == bool(compiled.returncode), compiled.stdout + compiled.stderr
    unknown = [f"{name_of(modules[(int(line) - 1) // 2][1])}: {message}" for line, message in located]
    return validated.stdout.splitlines() + unknown


def _node(*arguments: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    command = ["node", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)


def _module(found: Object, types: Path) -> Path:
    group, _, version = found["apiVersion"].partition("/")
    places = [types / "@kubernetes-models" / each / group / version / found["kind"] for each in _PACKAGES[group]]
    (module,) = (each for each in places if each.with_suffix(".js").exists())
    return module
