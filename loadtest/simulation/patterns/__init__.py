"""Request patterns of editors' clients: what each asks the server, and what it shows, while a user types.

Knows neither the server nor the typist: both are behind the interface of `port`.
"""

from collections.abc import Callable, Mapping

from completion_client.editing import EditingSettings
from loadtest.simulation.patterns.every_key import EveryKey
from loadtest.simulation.patterns.llama_vim import LlamaVim
from loadtest.simulation.patterns.llama_vscode import LlamaVscode
from loadtest.simulation.patterns.policy import PolicyClient
from loadtest.simulation.patterns.port import Client, Port

PATTERNS: Mapping[str, Callable[[Port], Client]] = {
    "policy": lambda port: PolicyClient(port, EditingSettings()),
    "every_key": EveryKey,
    "llama.vim": LlamaVim,
    "llama.vscode": LlamaVscode,
}
"""By name."""
