"""The same chats against this product and its peers over HTTP, one server after the other, in one run.

Servers are started and stopped here, by process id, on 127.0.0.1, with the same weights, requests and
number of threads; every answer goes on to its last token. What is missing or fails is said, not hidden.
The machine must be quiet: `python -m bench.peers_http --peers FOLDER --gguf FILE`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from bench import workload
from bench.chat_clients import ChatClient
from bench.chat_load import LoadShape
from bench.peer_servers import RECIPES, Places, ServerRecipe, running

HISTORY = 100
LOG_LINES_SHOWN = 15


def main() -> int:
    """Measure and print; 1 when a server that is there failed or an answer was lost."""
    options = _options()
    # A killed run must not leave a server behind: the way out goes through its context.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threads = len(os.sched_getaffinity(0))
    print(
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} {platform.machine()} {_cpu()}, {threads} cores, "
        f"load before {os.getloadavg()[0]:.2f}; {options.chats} chats, {options.at_once} at a time, "
        f"{options.turns} turns, {options.new_tokens} new tokens"
    )
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for number, recipe in enumerate(_recipes(options, Path(folder), threads)):
            failed |= not _measure(recipe, options, Path(folder) / f"{number}.log")
    return int(failed)


def _recipes(options: argparse.Namespace, work: Path, threads: int) -> Iterator[ServerRecipe]:
    """In the order asked for; llama.cpp once for each of its files."""
    for name in options.servers.split(","):
        for gguf in (options.gguf or [None]) if name == "llama" else [None]:
            yield RECIPES[name](
                Places(
                    model=options.model or workload.model_directory(),
                    gguf=gguf,
                    peers=options.peers,
                    work=work,
                    threads=threads,
                    llama_options=options.llama_options.split(),
                )
            )


def _measure(recipe: ServerRecipe, options: argparse.Namespace, log: Path) -> bool:
    """One server; False when it failed."""
    print(f"\n{recipe.name}", flush=True)
    missing = recipe.missing()
    if missing is not None:
        print(f"  absent, not measured: {missing}", flush=True)
        return True
    print(f"  {' '.join(recipe.arguments(0))}", flush=True)
    print(f"  whole answers by {dict(recipe.whole_answers)}", flush=True)
    try:
        with running(recipe, log) as server:
            print(f"  ready after {server.start_s:.1f} s", flush=True)
            errors, samples = asyncio.run(
                server.watched(_loads(server.url, recipe, options)),
            )
            peak = max(samples, key=lambda sizes: sum(sizes.values()))
            largest = sorted(peak.items(), key=lambda item: -item[1])[:4]
            shown = ", ".join(f"{name} {size / 2**20:.0f}" for name, size in largest)
            print(
                f"  peak memory {sum(peak.values()) / 2**20:.0f} MiB (PSS) in all: {shown}",
                flush=True,
            )
            return errors == 0
    except RuntimeError as error:
        print(f"  failed: {error}", flush=True)
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        print("\n".join(f"  | {line}" for line in lines[-LOG_LINES_SHOWN:]), flush=True)
        return False


async def _loads(url: str, recipe: ServerRecipe, options: argparse.Namespace) -> int:
    """The failures of all loads."""
    failures = 0
    async with ChatClient(url, recipe.model, recipe.whole_answers) as client:
        # Compiling and first-use set-up belong to the start; other words than any chat's.
        warm_up = LoadShape(chats=1, at_once=1, turns=1, new_tokens=8, seed=99)
        told = (await client.load(warm_up)).errors
        if told:
            raise RuntimeError(f"the first request failed: {told[0]}")
        print(
            f"  one stream: {await client.decode_rate(options.decode_tokens):.1f} tokens/s",
            flush=True,
        )
        for history in dict.fromkeys((0, options.history)):
            shape = LoadShape(
                chats=options.chats,
                at_once=options.at_once,
                turns=options.turns,
                new_tokens=options.new_tokens,
                history=history,
                seed=1 + history,
            )
            result = await client.load(shape)
            print(f"  {history} messages of history:", flush=True)
            for line in result.lines():
                print(f"    {line}", flush=True)
            failures += result.failures
    return failures


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    peers = os.environ.get("APPLIANCE_PEERS")
    parser.add_argument(
        "--peers",
        type=Path,
        default=Path(peers) if peers else None,
        help="a folder with llama/bin/llama-server and the environments vllm and tf "
        "(default: $APPLIANCE_PEERS)",
    )
    parser.add_argument(
        "--gguf", type=Path, action="append", help="the same weights for llama.cpp; may be repeated"
    )
    parser.add_argument("--llama-options", default="", help="more for llama-server, in one word")
    parser.add_argument("--model", type=Path, default=None, help="default: the demo's model")
    parser.add_argument("--servers", default=",".join(RECIPES), help="default: %(default)s")
    defaults = LoadShape()
    parser.add_argument("--chats", type=int, default=defaults.chats)
    parser.add_argument("--at-once", type=int, default=defaults.at_once)
    parser.add_argument("--turns", type=int, default=defaults.turns)
    parser.add_argument("--new-tokens", type=int, default=defaults.new_tokens)
    parser.add_argument("--decode-tokens", type=int, default=128, help="of the one stream")
    parser.add_argument(
        "--history", type=int, default=HISTORY, help="messages of the second load; 0: none"
    )
    options = parser.parse_args()
    unknown = [name for name in options.servers.split(",") if name not in RECIPES]
    if unknown:
        parser.error(f"no server {unknown[0]!r}, only {', '.join(RECIPES)}")
    return options


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown CPU"


if __name__ == "__main__":
    sys.exit(main())
