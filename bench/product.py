"""This product as a whole under load, three questions: `python -m bench.product slow|flat|busy`.

slow: what a reader of 10 bytes a second costs eight others. flat: whether memory grows over 2,000 turns.
busy: what client, server and PostgreSQL leave of the engine's throughput on the same cores, and how long
the longest step is. The machine must be quiet. Never: a peer (`bench.peers_http`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import statistics
import sys
import tempfile
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from appliance.config import EngineConfig
from appliance.prompt.bundle_folder import load_characters
from appliance.server.main import PROMPTS_DIR
from bench import workload
from bench.chat_clients import ChatClient, ConversationClient
from bench.chat_load import LoadResult, LoadShape
from bench.engine_alone import EngineAlone
from bench.peer_servers import (
    KV_BYTES,
    SAMPLE_S,
    ApplianceServe,
    Places,
    RunningServer,
    running,
)
from bench.slow_reader import Reader

STREAMS = 8
NINTH: Mapping[str, int | None] = {"quick": None, "slow": 10}
"""What a ninth stream reads, in bytes a second."""
NINTH_TOKENS = 2_000
FLAT_CACHE = 512 << 20
"""Full after some hundred turns: a cache that fills is no leak."""
FLAT_TURNS = 10
FLAT_TOKENS = 8
WARM_UP = LoadShape(chats=STREAMS, turns=1, new_tokens=8, seed=99)
_GAUGE = re.compile(r"^appliance_engine_decode_step_ms_(median|max) (\S+)$", re.MULTILINE)


def main() -> int:
    """One of the three; 1 when an answer was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", choices=("slow", "flat", "busy"))
    parser.add_argument("--rounds", type=int, default=3, help="of slow and busy")
    parser.add_argument("--chats", type=int, default=32, help="in each round of slow and busy")
    parser.add_argument("--turns", type=int, default=2_000, help="of flat, in all")
    options = parser.parse_args()
    # A killed run must not leave a server behind: the way out goes through its context.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print(f"{_cores()} cores, load before {os.getloadavg()[0]:.2f}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.question == "slow":
            failures = asyncio.run(_slow(folder, options.chats, options.rounds))
        elif options.question == "flat":
            failures = asyncio.run(_flat(folder, options.turns))
        else:
            failures = _busy(folder, options.chats, options.rounds)
    print(f"{failures} answers failed")
    return int(failures > 0)


async def _slow(folder: Path, chats: int, rounds: int) -> int:
    """Eight streams alone, beside a ninth that reads at once, and beside one that does not."""
    rates: dict[str, list[float]] = defaultdict(list)
    failures = 0
    with _product(folder, KV_BYTES) as (recipe, server):
        body = {
            "model": recipe.model,
            "messages": [{"role": "user", "content": "Tell me all there is."}],
            "max_tokens": NINTH_TOKENS,
            "stream": True,
            **recipe.whole_answers,
        }
        async with ChatClient(server.url, recipe.model, recipe.whole_answers) as client:
            await client.load(WARM_UP)
            for number in range(rounds):
                for kind, name in enumerate(("alone", *NINTH)):
                    reader = Reader(server.url, body, NINTH[name]) if name in NINTH else None
                    # Other chats each time, or the cache would know them.
                    seed = 1 + 3 * number + kind
                    result = await client.load(
                        LoadShape(chats=chats, at_once=STREAMS, turns=2, seed=seed)
                    )
                    print(f"  {name}: {result.lines()[0]}", flush=True)
                    if reader is not None:
                        await asyncio.to_thread(reader.stop)
                        if reader.refusal is not None:
                            raise SystemExit(f"the ninth stream was refused: {reader.refusal}")
                        print(
                            f"    the ninth got {reader.received} bytes in {result.seconds:.0f} s "
                            f"over {reader.connections} connections"
                        )
                    failures += result.failures
                    rates[name].append(result.rate)
    alone = statistics.median(rates["alone"])
    for name, values in rates.items():
        rate = statistics.median(values)
        print(f"{name}: {rate:.3f} messages/s, {rate / alone:.1%} of alone")
    return failures


async def _flat(folder: Path, turns: int) -> int:
    """Memory of each process against the turns done, from a quarter of them on."""
    points: dict[str, list[tuple[int, int]]] = defaultdict(list)
    result = LoadResult(asked_tokens=FLAT_TOKENS)
    shape = LoadShape(
        chats=turns // FLAT_TURNS, at_once=STREAMS, turns=FLAT_TURNS, new_tokens=FLAT_TOKENS
    )
    with _product(folder, FLAT_CACHE) as (recipe, server):
        async with ConversationClient(server.url, recipe.model, recipe.whole_answers) as client:
            load = asyncio.create_task(client.load(shape, result))
            while not load.done():
                sizes: dict[str, int] = defaultdict(int)
                for name, size in (await asyncio.to_thread(server.memory)).items():
                    sizes[name.split()[0]] += size
                for name, size in sizes.items():
                    points[name].append((len(result.answers), size))
                await asyncio.wait([load], timeout=SAMPLE_S)
            await load
    print(result.lines()[0])
    for name, samples in points.items():
        later = [point for point in samples if point[0] >= turns // 4]
        if len(later) < 2:
            continue
        done, bytes_then = zip(*later, strict=True)
        slope = statistics.linear_regression(done, bytes_then).slope
        print(
            f"{name}: {later[0][1] / 2**20:.1f} MiB after {later[0][0]} turns, "
            f"{later[-1][1] / 2**20:.1f} MiB after {later[-1][0]}, highest "
            f"{max(size for _, size in samples) / 2**20:.1f} MiB, {slope:.0f} bytes a turn (PSS)"
        )
    return result.failures


def _busy(folder: Path, chats: int, rounds: int) -> int:
    """The same chats in this process and through the whole product, in turns."""
    system = load_characters(PROMPTS_DIR).get(None).character.system
    config = EngineConfig(device="cpu", kv_cache_bytes=KV_BYTES, threads=_cores())
    ratios: list[float] = []
    failures = 0
    for number in range(rounds):
        shape = LoadShape(chats=chats, at_once=STREAMS, system=system, seed=1 + number)
        alone, steps = asyncio.run(_alone(config, shape))
        print(f"  alone: {alone.lines()[0]}")
        print(
            f"    steps: median {1000 * statistics.median(steps):.1f} ms, longest "
            f"{1000 * max(steps):.1f}, {max(steps) / statistics.median(steps):.1f} times",
            flush=True,
        )
        with _product(folder / str(number), KV_BYTES) as (recipe, server):
            whole, gauges = asyncio.run(_whole(recipe, server, shape))
        print(f"  whole: {whole.lines()[0]}")
        median, longest = gauges["median"], gauges["max"]
        print(
            f"    steps: median {median:.1f} ms, longest {longest:.1f}, "
            f"{longest / median:.1f} times",
            flush=True,
        )
        ratios.append(whole.rate / alone.rate)
        failures += alone.failures + whole.failures
    shown = ", ".join(f"{ratio:.1%}" for ratio in ratios)
    print(f"of the engine alone: median {statistics.median(ratios):.1%} ({shown})")
    return failures


async def _alone(config: EngineConfig, shape: LoadShape) -> tuple[LoadResult, list[float]]:
    engine = EngineAlone(workload.model_directory(), config)
    stepping = asyncio.create_task(engine.run())
    await engine.load(WARM_UP)
    engine.steps.clear()
    result = await engine.load(shape)
    stepping.cancel()
    return result, engine.steps


async def _whole(
    recipe: ApplianceServe, server: RunningServer, shape: LoadShape
) -> tuple[LoadResult, dict[str, float]]:
    """The load, and the median of the last steps' median and their longest, as the server tells."""
    medians: list[float] = []
    longest: list[float] = []
    async with ConversationClient(server.url, recipe.model, recipe.whole_answers) as client:
        await client.load(WARM_UP)
        load = asyncio.create_task(client.load(shape))
        while not load.done():
            # Not at once: the first steps told of are those of the warm-up.
            await asyncio.wait([load], timeout=5 * SAMPLE_S)
            gauges = dict(_GAUGE.findall(await asyncio.to_thread(_metrics, server.url)))
            medians.append(float(gauges["median"]))
            longest.append(float(gauges["max"]))
        return await load, {"median": statistics.median(medians), "max": max(longest)}


@contextmanager
def _product(folder: Path, kv_bytes: int) -> Iterator[tuple[ApplianceServe, RunningServer]]:
    folder.mkdir(exist_ok=True)
    places = Places(
        model=workload.model_directory(), gguf=None, peers=None, work=folder, threads=_cores()
    )
    recipe = ApplianceServe(places, {"kv_cache_bytes": kv_bytes})
    with running(recipe, folder / "log") as server:
        yield recipe, server


def _metrics(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        text: bytes = response.read()
    return text.decode()


def _cores() -> int:
    return len(os.sched_getaffinity(0))


if __name__ == "__main__":
    sys.exit(main())
