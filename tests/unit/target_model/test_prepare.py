"""What a model is made into for this machine. The speeds of the processor are given."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import gguf
import numpy
import pytest
import torch
from click.testing import CliRunner
from huggingface_hub import constants
from safetensors.torch import load_file

from target_model import prepare as module
from target_model.__main__ import main
from target_model.core import TargetError
from target_model.prepare import prepare
from target_model.quantise import read_config
from tests.support.models import ROOT

SHAPE = {
    "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 16,
}  # fmt: skip
HEAD = (16, 8)


@pytest.fixture
def whole(model: Path) -> Path:
    """A model whose config.json has its shape."""
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | SHAPE))
    return model


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def gain(
    monkeypatch: pytest.MonkeyPatch, of_layers: float | None, of_head: float = 1.0
) -> list[tuple[Sequence[tuple[int, int]], int]]:
    """Let the processor be faster in INT8, where a layer and the head take a second a step; return what is measured."""
    asked: list[tuple[Sequence[tuple[int, int]], int]] = []

    def seconds(matrices: Sequence[tuple[int, int]], num_tokens: int) -> tuple[float, float] | None:
        asked.append((matrices, num_tokens))
        return None if of_layers is None else (of_head if matrices == [HEAD] else of_layers, 1.0)

    monkeypatch.setattr(module, "linear_seconds", seconds)
    return asked


@pytest.fixture
def said() -> list[str]:
    return []


def test_a_processor_that_is_faster_in_int8_gets_a_copy_once(
    whole: Path, cache: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = gain(monkeypatch, 1.6)
    first = prepare(str(whole), cache, said.append)
    assert first.about == "in INT8: the matrices of a completion are 1.4 times as fast in INT8 here"
    assert (first.folder.parent, json.loads((first.folder / "config.json").read_text())["hidden_size"]) == (cache, 8)
    layer = [(24, 8), (8, 8), (32, 8), (8, 16)]
    assert asked == [(layer, 64), (layer, 1), ([HEAD], 1)]
    assert load_file(first.folder / "model.safetensors")["lm_head.weight"].dtype == torch.bfloat16
    assert "of memory" in said[0]
    assert "making an INT8 copy at" in said[1]
    again = prepare(str(whole), cache, said.append)
    assert (again.folder, again.about, len(asked)) == (first.folder, "its INT8 copy was made before", 3)
    assert prepare(str(first.folder), cache, said.append).about == "it is quantised already"


@pytest.mark.parametrize("of_layers", [1.0, 1.6])
def test_a_head_that_is_much_of_a_step_is_rounded_too(
    whole: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, of_layers: float
) -> None:
    gain(monkeypatch, of_layers, 4.0)
    prepared = prepare(str(whole), cache, lambda _text: None)
    gained = f"{(2 * of_layers + 4.0) / 3:.1f} times as fast in INT8 here, the output head's with them"
    assert gained in prepared.about
    assert load_file(prepared.folder / "model.safetensors")["lm_head.weight"].dtype == torch.int8


@pytest.mark.parametrize(("found", "about"), [(1.05, "in bfloat16: the matrices"), (None, "for a GPU")])
def test_a_processor_that_gains_nothing_serves_the_model_as_it_is(
    whole: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, found: float | None, about: str
) -> None:
    gain(monkeypatch, found)
    prepared = prepare(str(whole), cache, lambda _text: None)
    assert (prepared.folder, about in prepared.about) == (whole, True)


def test_a_model_of_another_form_is_served_as_it_is(model: Path, cache: Path) -> None:
    assert prepare(str(model), cache, lambda _text: None).folder == model


def test_a_gguf_file_is_converted_once(
    tmp_path: Path, cache: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gain(monkeypatch, None)
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    folder = prepare(str(path), cache, said.append).folder
    assert (folder.parent, read_config(folder)["hidden_size"]) == (cache, 32)
    assert {each.name for each in folder.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert any("converting tiny.gguf once" in each for each in said)
    said.clear()
    assert prepare(str(path), cache, said.append).folder == folder
    assert not any("converting" in each for each in said)


def write_gguf(path: Path) -> None:
    """Write a random Llama model of one layer, 32 wide, with a vocabulary of bytes."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a"]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * 3
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores([0.0] * len(pieces))
    writer.add_token_types(kinds)
    writer.add_vocab_size(len(pieces))
    for name, value in (("unk", 0), ("bos", 1), ("eos", 2)):
        getattr(writer, f"add_{name}_token_id")(value)
    random = numpy.random.default_rng(1)
    shapes = {"token_embd": (len(pieces), 32), "output_norm": (32,), "output": (len(pieces), 32)}
    shapes |= {f"blk.0.attn_{each}": (32, 32) for each in ("q", "k", "v", "output")}
    shapes |= {"blk.0.attn_norm": (32,), "blk.0.ffn_norm": (32,)}
    shapes |= {"blk.0.ffn_gate": (64, 32), "blk.0.ffn_up": (64, 32), "blk.0.ffn_down": (32, 64)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.normal(size=shape).astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def offline(_cache: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return "org/name"


def broken(cache: Path, _monkeypatch: pytest.MonkeyPatch) -> str:
    path = cache.parent / "broken.gguf"
    path.write_bytes(b"no model")
    return str(path)


def huge(cache: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(module, "_SERVER_BYTES", 1 << 60)
    return str(cache.parent / "model")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _cache, _monkeypatch: "./none", "is no folder, no GGUF file and no hub id"),
        (lambda cache, _monkeypatch: str(cache.parent), "is no model's folder: it must have config.json"),
        (offline, "org/name is no folder and not in the hub's cache, and can't be fetched"),
        (lambda _cache, _monkeypatch: "models/none.gguf", "is no folder, no GGUF file and no hub id"),
        (lambda _cache, _monkeypatch: "org/a name", "can't be fetched: Repo id must"),
        (broken, "broken.gguf can't be converted"),
        (huge, "the model needs about"),
    ],
)
def test_a_model_that_can_not_be_served_is_refused(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path, pytest.MonkeyPatch], str],
    message: str,
) -> None:  # fmt: skip
    assert model.is_dir()
    with pytest.raises(TargetError, match=message):
        prepare(make(cache, monkeypatch), cache, lambda _text: None)


def test_the_command_prints_the_folder_alone(whole: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gain(monkeypatch, None)
    found = CliRunner().invoke(main, ["prepare", str(whole), "--cache", str(cache)])
    assert (found.exit_code, found.stdout) == (0, f"{whole}\n")
    assert "of memory" in found.stderr


COMMIT = "1" * 40


class Hub(BaseHTTPRequestHandler):
    """A hub with one model, as far as huggingface_hub asks for it; may cut the transfer of weights."""

    files: ClassVar[dict[str, bytes]]
    cuts = False

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        name, headers, sent = path.rpartition("/")[2], {}, None
        if path.startswith("/org/name/resolve/"):
            body = self.files[name]
            headers = {"ETag": f'"{sha1(body).hexdigest()}"', "X-Repo-Commit": COMMIT}
            sent = 9 if self.cuts and name == "model.safetensors" else None
        elif "/tree/" in path:
            files = [
                {"type": "file", "path": name, "size": len(body), "oid": "2" * 40} for name, body in self.files.items()
            ]
            body = json.dumps(files).encode()
        else:
            siblings = [{"rfilename": name, "size": len(body)} for name, body in self.files.items()]
            body = json.dumps({"id": "org/name", "sha": COMMIT, "siblings": siblings}).encode()
        self.send_response(200)
        for key, value in {"Content-Length": str(len(body)), "Content-Type": "application/json", **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:sent])

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None: ...


def test_a_download_from_a_hub_that_is_cut_ends_with_a_line_and_the_next_one_is_whole(
    model: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {path.name: path.read_bytes() for path in model.iterdir()}
    Hub.files = {**wanted, "pytorch_model.bin": b"not wanted"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    command = [sys.executable, "-m", "target_model", "prepare", "org/name", "--cache", str(cache)]
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"}

        def run() -> subprocess.CompletedProcess[str]:
            return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)

        try:
            monkeypatch.setattr(Hub, "cuts", True)
            cut = run()
            monkeypatch.setattr(Hub, "cuts", False)
            whole = run()
        finally:
            server.shutdown()
    assert cut.returncode == 1
    last = cut.stderr.splitlines()[-1]
    assert last.startswith("Error: org/name is no folder and not in the hub's cache, and can't be fetched: peer closed")
    assert "Traceback" not in cut.stderr
    assert whole.returncode == 0, whole.stderr
    assert {path.name: path.read_bytes() for path in Path(whole.stdout.strip()).iterdir()} == wanted
