"""Chat servers under one load: how each is started, what it is called, and how it is stopped.

A recipe is one small class; what it needs and cannot find is said by `missing`. Never: sends a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import psutil

READY_S_MAX = 1_800.0
STOP_S_MAX = 60.0
KV_BYTES = 3 << 29
"""For a server that is told bytes: 65,536 tokens of the demo model in 16 bits, as the others get."""
SAMPLE_S = 1.0
ENTRY = "appliance.cli.main"
T = TypeVar("T")
END_TOKENS = tuple(range(17))
"""The control tokens of the demo model, which all end an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where things are: the model as a directory and as a GGUF file, the peers, a folder for a run.

    `llama_options`: more for llama.cpp, to find out what suits it.
    """

    model: Path
    gguf: Path | None
    peers: Path | None
    work: Path
    threads: int
    llama_options: Sequence[str] = ()

    def of_peer(self, path: str) -> Path:
        """A file of the peers; one that is not there when it was not said where they are."""
        return (self.peers or Path("(no --peers)")) / path


class ServerRecipe(ABC):
    """One server. `model` is what its requests call the model; `ready_path` answers 200 once it can.

    `whole_answers`: what a request says besides, so that its answer goes on to `max_tokens`.
    """

    name: str
    whole_answers: Mapping[str, Any] = {"ignore_eos": True}
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
    whole_answers: Mapping[str, Any] = {
        "logit_bias": {str(token_id): -100 for token_id in END_TOKENS}
    }

    def __init__(
        self,
        places: Places,
        engine: Mapping[str, int] = MappingProxyType({"kv_cache_bytes": KV_BYTES}),
    ) -> None:
        """`engine`: settings of its section."""
        super().__init__(places)
        self.engine = engine

    @property
    def program(self) -> Path:
        """The interpreter of this run."""
        return Path(sys.executable)

    def arguments(self, port: int) -> list[str]:
        """A configuration file in the folder of the run."""
        folder = self.places.work / "appliance"
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "box.toml"
        engine = "".join(f"{name} = {value}\n" for name, value in self.engine.items())
        config.write_text(
            f'[model]\npath = "{self.places.model}"\nname = "{self.model}"\n'
            '[paths]\ndata_dir = "data"\nrun_dir = "run"\n'
            f"[server]\nport = {port}\n[engine]\nthreads = {self.places.threads}\n{engine}"
        )
        return ["-m", ENTRY, "serve", "--config", str(config)]


class LlamaServer(ServerRecipe):
    """llama.cpp with one of its files.

    What it keeps of idle slots in memory (`--cache-ram`) stays at its default of 8 GiB.
    """

    def __init__(self, places: Places) -> None:
        super().__init__(places)
        self.name = f"llama-server, {'no --gguf' if places.gguf is None else places.gguf.name}"

    @property
    def program(self) -> Path:
        """Built by hand from the source distribution of `llama-cpp-python`."""
        return self.places.of_peer("llama/bin/llama-server")

    def arguments(self, port: int) -> list[str]:
        """Eight slots of 8,192 tokens: one for each chat that is answered at once."""
        words = f"-t {self.places.threads} -c 65536 -np 8 --no-webui"
        address = f"--host 127.0.0.1 --port {port}"
        options = [*f"{words} {address}".split(), *self.places.llama_options]
        return ["-m", str(self.places.gguf), *options]

    def missing(self) -> str | None:
        """The program or the file."""
        if self.places.gguf is None or not self.places.gguf.is_file():
            return "no GGUF file of the model"
        return super().missing()


class VllmCpu(ServerRecipe):
    """vLLM's CPU package in float32: bfloat16 is several times slower without AVX-512."""

    name = "vLLM CPU float32"

    @property
    def program(self) -> Path:
        """In an environment of its own."""
        return self.places.of_peer("vllm/bin/vllm")

    def arguments(self, port: int) -> list[str]:
        """Compiled, with prefix caching."""
        words = f"--served-model-name {self.model} --dtype float32 --max-model-len 8192"
        caching = "--enable-prefix-caching --enable-prompt-tokens-details"
        address = f"--host 127.0.0.1 --port {port}"
        return ["serve", str(self.places.model), *f"{words} {caching} {address}".split()]

    def environment(self) -> Mapping[str, str]:
        """All cores, the cache's size, no network."""
        library = self.places.of_peer("vllm/lib/libiomp5.so")
        return {
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
            "VLLM_CPU_KVCACHE_SPACE": str(-(-KV_BYTES >> 30)),
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
        # It knows no ignore_eos; a request may bring a configuration, which takes no id as the end.
        generation = {"do_sample": False, "eos_token_id": -1, "pad_token_id": END_TOKENS[0]}
        self.whole_answers = {"generation_config": json.dumps(generation)}

    @property
    def program(self) -> Path:
        """In an environment of its own."""
        return self.places.of_peer("tf/bin/transformers")

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

    def memory(self) -> dict[str, int]:
        """The proportional set size of each of its processes in bytes: shared pages count once in all."""
        sizes: dict[str, int] = {}
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess, OSError):
                rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
                fields = dict(line.split(":", 1) for line in rollup.splitlines()[1:])
                sizes[f"{_label(process)} {process.pid}"] = int(fields["Pss"].split()[0]) * 1024
        return sizes

    async def watched(self, work: Coroutine[Any, Any, T]) -> tuple[T, list[dict[str, int]]]:
        """What the work gives, and `memory` every second meanwhile."""
        samples: list[dict[str, int]] = []
        task = asyncio.create_task(work)
        while not task.done():
            samples.append(await asyncio.to_thread(self.memory))
            await asyncio.wait([task], timeout=SAMPLE_S)
        return await task, samples

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


def _label(process: psutil.Process) -> str:
    """This product's processes by their subcommand, others by name."""
    words = process.cmdline()
    if ENTRY in words[:-1]:
        return words[words.index(ENTRY) + 1]
    return process.name()


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port
