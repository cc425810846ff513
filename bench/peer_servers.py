"""Chat servers under one load: how each is started, what it is called, and how it is stopped.

A recipe is one small class; what it needs and cannot find is said by `missing`. Never: sends a request.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

READY_S_MAX = 1_800.0
STOP_S_MAX = 60.0
KV_BYTES = 4 << 30
"""What each server that can be told may keep in its cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where things are: the model as a directory and as a GGUF file, the peers, a folder for a run."""

    model: Path
    gguf: Path
    peers: Path
    work: Path
    threads: int


class ServerRecipe(ABC):
    """One server. `model` is what its requests call the model; `ready_path` answers 200 once it can."""

    name: str
    model = "m"
    ready_path = "/health"

    def __init__(self, places: Places) -> None:
        self.places = places

    @property
    @abstractmethod
    def program(self) -> Path:
        """What is run."""

    @abstractmethod
    def arguments(self, port: int) -> list[str]:
        """After the program."""

    def environment(self) -> Mapping[str, str]:
        """Besides that of this process."""
        return {}

    def missing(self) -> str | None:
        """What is not there; None when it can be started."""
        return None if self.program.is_file() else f"no {self.program}"


class ApplianceServe(ServerRecipe):
    """This product, with the database that it brings."""

    name = "appliance serve"
    ready_path = "/ready"

    @property
    def program(self) -> Path:
        """The interpreter of this run."""
        return Path(sys.executable)

    def arguments(self, port: int) -> list[str]:
        """A configuration file in the folder of the run."""
        folder = self.places.work / "appliance"
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "box.toml"
        config.write_text(
            f'[model]\npath = "{self.places.model}"\nname = "{self.model}"\n'
            '[paths]\ndata_dir = "data"\nrun_dir = "run"\n'
            f"[server]\nport = {port}\n"
            f"[engine]\nkv_cache_bytes = {KV_BYTES}\nthreads = {self.places.threads}\n"
        )
        return ["-m", "appliance.cli.main", "serve", "--config", str(config)]


class LlamaServer(ServerRecipe):
    """llama.cpp with its four-bit file."""

    name = "llama-server Q4_1"

    @property
    def program(self) -> Path:
        """Built by hand from the source distribution of `llama-cpp-python`."""
        return self.places.peers / "llama/bin/llama-server"

    def arguments(self, port: int) -> list[str]:
        """Eight slots of 8,192 tokens."""
        threads = str(self.places.threads)
        address = ["--host", "127.0.0.1", "--port", str(port)]
        return ["-m", str(self.places.gguf), "-t", threads, "-c", "65536", "-np", "8", *address]

    def missing(self) -> str | None:
        """The program or the file."""
        if not self.places.gguf.is_file():
            return f"no {self.places.gguf}"
        return super().missing()


class VllmCpu(ServerRecipe):
    """vLLM's CPU package in float32: bfloat16 is several times slower without AVX-512."""

    name = "vLLM CPU float32"

    @property
    def program(self) -> Path:
        """In an environment of its own."""
        return self.places.peers / "vllm/bin/vllm"

    def arguments(self, port: int) -> list[str]:
        """Compiled, with prefix caching."""
        words = f"--served-model-name {self.model} --dtype float32 --max-model-len 8192"
        caching = "--enable-prefix-caching --enable-prompt-tokens-details"
        address = f"--host 127.0.0.1 --port {port}"
        return ["serve", str(self.places.model), *f"{words} {caching} {address}".split()]

    def environment(self) -> Mapping[str, str]:
        """All cores, the cache's size, no network."""
        library = self.places.peers / "vllm/lib/libiomp5.so"
        return {
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{self.places.threads - 1}",
            "VLLM_CPU_KVCACHE_SPACE": str(KV_BYTES >> 30),
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            **({"LD_PRELOAD": str(library)} if library.is_file() else {}),
        }


class TransformersServe(ServerRecipe):
    """transformers with continuous batching in float32."""

    name = "transformers serve float32"
    ready_path = "/v1/models"

    def __init__(self, places: Places) -> None:
        super().__init__(places)
        self.model = str(places.model)

    @property
    def program(self) -> Path:
        """In an environment of its own."""
        return self.places.peers / "tf/bin/transformers"

    def arguments(self, port: int) -> list[str]:
        """Paged attention over SDPA."""
        words = "--device cpu --dtype float32 --continuous-batching --attn-implementation sdpa"
        bounds = "--cb-num-blocks 256 --cb-max-batch-tokens 2048"
        address = f"--host 127.0.0.1 --port {port}"
        return ["serve", str(self.places.model), *f"{words} {bounds} {address}".split()]

    def environment(self) -> Mapping[str, str]:
        """Its threads, no network."""
        threads = str(self.places.threads)
        return {"OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


RECIPES: Mapping[str, type[ServerRecipe]] = {
    "appliance": ApplianceServe,
    "llama": LlamaServer,
    "vllm": VllmCpu,
    "transformers": TransformersServe,
}


class RunningServer:
    """A started server and the processes below it."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self.url = url
        self.start_s = 0.0
        self._process = process
        self._root = psutil.Process(process.pid)

    def wait_ready(self, path: str) -> None:
        """Until this path answers 200. Raises RuntimeError when it ends before, or takes too long."""
        started = time.monotonic()
        while time.monotonic() < started + READY_S_MAX:
            if self._process.poll() is not None:
                raise RuntimeError(f"it ended with {self._process.returncode}")
            with (
                contextlib.suppress(urllib.error.URLError, OSError),
                urllib.request.urlopen(f"{self.url}{path}", timeout=5),
            ):
                self.start_s = time.monotonic() - started
                return
            time.sleep(0.2)
        raise RuntimeError(f"not ready after {READY_S_MAX:.0f} s")

    def peak_bytes(self) -> dict[str, int]:
        """The highest resident memory that each process has had, largest first."""
        peaks: dict[str, int] = {}
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
                status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
                fields = dict(line.split(":", 1) for line in status.splitlines())
                if "VmHWM" in fields:
                    name = f"{process.name()} {process.pid}"
                    peaks[name] = int(fields["VmHWM"].split()[0]) * 1024
        return dict(sorted(peaks.items(), key=lambda item: -item[1]))

    def stop(self) -> None:
        """Ask it to end, then end what is left of its processes."""
        tree = self._tree()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S_MAX)
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    def _tree(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return [self._root, *self._root.children(recursive=True)]
        return []


@contextlib.contextmanager
def running(recipe: ServerRecipe, log: Path) -> Iterator[RunningServer]:
    """The server, ready; its output goes to `log`. Stopped at the end in any case."""
    port = _free_port()
    command = [str(recipe.program), *recipe.arguments(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=os.environ | dict(recipe.environment()),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = RunningServer(process, f"http://127.0.0.1:{port}")
    try:
        server.wait_ready(recipe.ready_path)
        yield server
    finally:
        server.stop()


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port
