"""A scaled day of traffic: `python -m bench.soak` (50,000 turns), `python -m bench.soak --real` (2,000).

Users come and go in three equal waves, with thousands of chats. Memory, descriptors and threads of each
process, pages of the cache and the size of the database are sampled; each series of the last wave is held
against the wave before it, and is flat, or grows by design and says why. With `--real` the engine has the
demo model, else a script answers. Interrupted (Ctrl-C), it reports what there is. Exit code 1: a series
grew without an explanation, an answer failed, or something was held at the end; 2: too short to say.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from appliance.cli.admin_client import ask_socket
from appliance.config import MIB, Config, EngineConfig
from appliance.errors import ApplianceError
from bench import workload
from bench.survival import proofs
from bench.survival.chats import Door
from bench.survival.product import Recipe, config_of, units_of
from bench.survival.samples import ASKED, Judged, Sample, judge, sample
from bench.survival.units import Units
from bench.survival.users import WAVES, Traffic, day
from bench.survival.verdict import Outcome
from tests.model_fixtures import tiny_model, write_directory

START_S_MAX = 300.0
TELL_EVERY = 6
KV_BYTES = 512 * MIB
"""Full before the second wave: a cache that fills is no leak."""
READ_AGAIN = 300
ASK_S_MAX = 10.0


def main() -> int:
    """Run, print, and give the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", action="store_true", help="the demo model in place of a script")
    parser.add_argument("--turns", type=int, help="default: 50,000; with --real 2,000")
    parser.add_argument("--users", type=int, help="at the highest point; default 48, with --real 8")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between samples")
    parser.add_argument("--json", type=Path, help="write samples and verdict there as well")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        soak = asyncio.run(_run(options, folder))
    print("\n".join(soak.lines()), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(soak.as_json(), indent=1))
    return soak.outcome.exit_code


async def _run(options: argparse.Namespace, folder: Path) -> Soak:
    recipe = _recipe(folder, is_real=options.real)
    config = config_of(recipe, folder, folder / "data")
    traffic = Traffic(
        wanted=options.turns or (2_000 if options.real else 50_000),
        new_tokens=32 if options.real else 64,
    )
    async with units_of(recipe, config, folder, {}) as units, Door(units.url) as door:
        await units.until_ready(START_S_MAX)
        soak = Soak(units, config, traffic, is_real=options.real)
        users = options.users or (8 if options.real else 48)
        running = asyncio.create_task(day(door, traffic, users=users, seed=options.seed))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        await soak.watch(running, options.every)
        await soak.prove(door)
        statuses = await units.stop()
        soak.found += [f"exit statuses {statuses}"] if any(statuses.values()) else []
    return soak


def _recipe(folder: Path, *, is_real: bool) -> Recipe:
    if is_real:
        engine = EngineConfig(device="cpu", kv_cache_bytes=KV_BYTES)
        return Recipe(model=workload.model_directory(), engine=engine)
    return Recipe(
        model=write_directory(folder / "model", tiny_model(max_position_embeddings=4096)),
        engine=EngineConfig(),
        engine_program="bench.survival.soak_engine",
    )


class Soak:
    """One day: its samples and what was found wrong."""

    def __init__(self, units: Units, config: Config, traffic: Traffic, *, is_real: bool) -> None:
        self._units = units
        self._config = config
        self._traffic = traffic
        self._is_real = is_real
        self._samples: list[Sample] = []
        self._seconds = 0.0
        self._started_units = self._starts()
        self.found: list[str] = []

    async def watch(self, running: asyncio.Task[None], every_s: float) -> None:
        """Sample until the day is over, or was broken off."""
        started = time.monotonic()
        while not running.done():
            await asyncio.wait([running], timeout=every_s)
            values = await asyncio.to_thread(self._look)
            traffic = self._traffic
            self._samples.append(Sample(wave=traffic.wave, turns=traffic.turns, values=values))
            if len(self._samples) % TELL_EVERY == 0:
                self._tell(values, time.monotonic() - started)
        self._seconds = time.monotonic() - started
        with contextlib.suppress(asyncio.CancelledError):
            await running
        restarted = {
            name: n for name, n in self._starts().items() if n != self._started_units[name]
        }
        self.found += [f"units ended and were started again: {restarted}"] if restarted else []

    async def prove(self, door: Door) -> None:
        """At rest: nothing is held, and what was acknowledged is there."""
        try:
            await proofs.until_calm(door)
            if self._is_real:
                self.found += await proofs.leaked(self._config.paths.engine_socket)
        except TimeoutError as error:
            self.found.append(str(error))
        for talk in self._traffic.talks[-READ_AGAIN:]:
            status, answer = await door.json("GET", f"/api/conversations/{talk.conversation}")
            stored = {m["id"] for m in answer["messages"]} if status == 200 else set()
            missing = len(set(talk.replies) - stored)
            self.found += [f"{talk.conversation}: {missing} replies are LOST"] if missing else []

    @property
    def outcome(self) -> Outcome:
        """Whether nothing is wrong, and every series of a whole day is flat or explained."""
        judged = self._judged()
        wrong = self.found or +self._traffic.failures or not all(one.passed for one in judged)
        if wrong:
            return Outcome.FAILED
        is_whole = bool(judged) and self._traffic.turns >= self._traffic.wanted
        is_whole = is_whole and not self._not_told(judged)
        return Outcome.PASSED if is_whole else Outcome.NOT_PROVED

    def lines(self) -> list[str]:
        """The report."""
        traffic = self._traffic
        shown = [
            f"{traffic.turns} turns of {traffic.wanted} in {self._seconds:.0f} s, {traffic.sessions} "
            f"visits, {len(traffic.talks) + traffic.deleted} chats of which {traffic.deleted} were "
            f"deleted; {len(self._samples)} samples",
            "asked: " + ", ".join(f"{name} {n}" for name, n in traffic.counts.most_common()),
        ]
        judged = self._judged()
        if not judged:
            shown.append(f"too short to judge: {WAVES - 1} waves with samples are needed")
        else:
            shown.append(
                f"{'series':<26}{'wave before':>14}{'last wave':>14}{'a turn':>12}  verdict"
            )
        shown += [f"{name}: not told by most samples" for name in self._not_told(judged)]
        for one in judged:
            verdict = "flat" if one.is_flat else f"grows: {one.explanation or 'NOT EXPLAINED'}"
            shown.append(
                f"{one.name:<26}{_shown(one.name, one.before):>14}{_shown(one.name, one.last):>14}"
                f"{one.a_turn:>12.2f}  {verdict}"
            )
        shown += [f"failed: {n} times {what}" for what, n in (+traffic.failures).items()]
        shown += [f"found: {sentence}" for sentence in self.found]
        shown.append(self.outcome.value)
        return shown

    def as_json(self) -> dict[str, Any]:
        """All of it in plain values."""
        return {
            "outcome": self.outcome.value,
            "turns": self._traffic.turns,
            "seconds": round(self._seconds, 1),
            "samples": [asdict(one) for one in self._samples],
            "judged": [asdict(one) for one in self._judged()],
            "failures": dict(+self._traffic.failures),
            "found": self.found,
        }

    def _not_told(self, judged: Sequence[Judged]) -> list[str]:
        """The series that cannot be judged; with the real model its engine's are among them."""
        asked = set(ASKED) if self._is_real and judged else set()
        return sorted(asked - {one.name for one in judged if one.is_whole})

    def _judged(self) -> list[Judged]:
        return judge(self._samples, self._samples[-1].wave) if self._samples else []

    def _look(self) -> dict[str, float]:
        engine: Mapping[str, float] = {}
        if self._is_real:
            address = self._config.paths.admin_socket
            with contextlib.suppress(ApplianceError):
                answer = ask_socket(address, "GET", "/cache/stats", timeout_s=ASK_S_MAX)
                engine = next(iter(answer["engines"].values())) or {}
        return sample(self._units, self._config.paths.data_dir, engine)

    def _starts(self) -> dict[str, int]:
        return {name: state.starts for name, state in self._units.states.items()}

    def _tell(self, values: Mapping[str, float], seconds: float) -> None:
        traffic = self._traffic
        memory = ", ".join(
            f"{name} {values.get(f'{name} memory', 0) / MIB:.0f} MiB" for name in self._units.states
        )
        print(
            f"{traffic.turns} of {traffic.wanted} turns, {traffic.turns / seconds:.0f}/s, "
            f"{len(traffic.talks)} chats, {memory}, {sum(traffic.failures.values())} failed",
            flush=True,
        )


def _shown(name: str, value: float) -> str:
    is_bytes = any(word in name for word in ("memory", "shared", "database", "WAL", "journal"))
    return f"{value / MIB:.1f} MiB" if is_bytes else f"{value:.0f}"


if __name__ == "__main__":
    sys.exit(main())
