"""A product under many chats, to which everything happens: `python -m bench.chaos --kills 1000`.

Real processes (server, engine with a tiny model, embedded PostgreSQL) as systemd runs them, on a small
disk of their own. A seeded schedule kills any process at any moment, freezes a loop, fills the disk, sets
the clock and cuts the power; half of the faults come alone and are timed, the others come with more on
their heels. Users send each turn again until it is acknowledged. Then: is every acknowledged turn stored,
once and in order; is a reply made without a cache the same; is any page, sequence or stream still held?

Interrupted (Ctrl-C), it proves and reports what was done so far. Exit code 1: a promise was broken; 2:
none was, but not all was tried.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import aiohttp

from appliance.cli.admin_client import ask_socket
from appliance.config import MIB, Config, DatabaseConfig, EngineConfig
from bench.survival import clock, disk, proofs
from bench.survival.chats import Account, Chatter, Door, Promise
from bench.survival.clock import WallClock
from bench.survival.disk import SmallDisk
from bench.survival.faults import KINDS, Kind, Victim, possible
from bench.survival.product import Recipe, config_of, units_of
from bench.survival.verdict import Verdict
from tests.model_fixtures import tiny_model, write_directory

DISK_BYTES = 3 << 29
START_S_MAX = 120.0
RECOVER_S_MAX = 90.0
LOOK_EVERY_S = 0.05
READY_S_MAX = 2.0
MORE_KILLS_MAX = 3
MORE_WITHIN_S = 1.0
MORE = ("kill server", "kill engine", "kill postmaster", "kill backend")
MORE_WEIGHTS = (3, 1, 1, 2)
PROVE_EVERY = 12
"""Faults between two proofs of an idle product: an engine that is killed takes its leaks with it."""
STATUSES_AFTER_STOP = {"server": 0, "engine": 0, "postgres": 0}
ENGINE = EngineConfig(
    device="cpu",
    threads=1,
    kv_cache_bytes=6 * MIB,
    host_cache_bytes=1 * MIB,
    disk_cache_bytes=16 * MIB,
    running_max=8,
)


def main() -> int:
    """Run, print, and give the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--kills",
        type=_count,
        default=1_000,
        help="processes to kill (-9), one by one; where --only names no kill: faults",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--chats", type=int, default=12, help="users at once")
    parser.add_argument("--turns", type=int, default=8, help="of a conversation, at most")
    parser.add_argument(
        "--again", type=int, default=200, help="replies to be made again at the end"
    )
    parser.add_argument(
        "--only", action="append", choices=list(KINDS), help="a kind of fault (again for more)"
    )
    parser.add_argument("--json", type=Path, help="write the verdict there as well")
    parser.add_argument("--keep", type=Path, help="a new folder for all files, left there")
    options = parser.parse_args()
    with _folder(options.keep) as folder, ExitStack() as resources:
        verdict = asyncio.run(_run(options, folder, resources))
    print("\n".join(verdict.lines()), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(verdict.as_json(), indent=1))
    return verdict.outcome.exit_code


async def _run(options: argparse.Namespace, folder: Path, resources: ExitStack) -> Verdict:
    verdict = Verdict(seed=options.seed, kills=options.kills, account=Account())
    small, wall = _disk(folder, resources, verdict), _clock(folder, verdict)
    recipe = Recipe(
        model=write_directory(folder / "model", tiny_model(max_position_embeddings=4096)),
        engine=ENGINE,
        database=DatabaseConfig(journal_bytes=16 * MIB),
    )
    data_dir = (folder if small is None else small.folder) / "data"
    config = config_of(recipe, folder, data_dir)
    environment = {} if wall is None else wall.environment
    async with (
        units_of(recipe, config, folder, environment) as units,
        Door(units.url) as door,
    ):
        await units.until_ready(START_S_MAX)
        victim = Victim(units=units, disk=small, clock=wall, random=random.Random(options.seed))
        gate = asyncio.Event()
        gate.set()
        chatters = [
            Chatter(door, verdict.account, seed=number, turns=options.turns, gate=gate)
            for number in range(options.chats)
        ]
        talking = [asyncio.create_task(chatter.run()) for chatter in chatters]
        run = Chaos(victim, door, config, verdict, chatters, gate)
        started = time.monotonic()
        try:
            await run.faults(options.kills, options.only)
            await run.proofs(options.again, options.seed)
        finally:
            verdict.seconds = time.monotonic() - started
            for task in talking:
                task.cancel()
            ended = await asyncio.gather(*talking, return_exceptions=True)
        verdict.faults[Promise.STUCK] += [
            f"a user ended: {error!r}"
            for error in ended
            if not isinstance(error, asyncio.CancelledError)
        ]
        verdict.faults[Promise.TEXT_IN_LOGS] += proofs.told_in_logs(
            verdict.account, (folder, data_dir / "postgres" / "log")
        )
        statuses = await units.stop()
        if statuses != STATUSES_AFTER_STOP:
            verdict.faults[Promise.NO_ORDERLY_END].append(f"exit statuses {statuses}")
    verdict.close(kinds=KINDS)
    return verdict


class Chaos:
    """The schedule over one running product."""

    def __init__(
        self,
        victim: Victim,
        door: Door,
        config: Config,
        verdict: Verdict,
        chatters: list[Chatter],
        gate: asyncio.Event,
    ) -> None:
        self._victim = victim
        self._door = door
        self._config = config
        self._verdict = verdict
        self._chatters = chatters
        self._gate = gate
        self._stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stopping.set)

    async def faults(self, kills: int, only: list[str] | None) -> None:
        """Until so many processes are killed, or until interrupted."""
        kinds = possible(self._victim)
        names = [name for name in kinds if only is None or name in only]
        if not names:
            return
        weights = [kinds[name].weight for name in names]
        # Each kind once in the beginning, however short the run.
        first = self._victim.random.sample(names, len(names))
        does_kill = any(kinds[name].kills for name in names)
        rounds = 0
        while (
            first or (self._verdict.killed if does_kill else rounds) < kills
        ) and not self._stopping.is_set():
            name = first[-1] if first else self._victim.random.choices(names, weights)[0]
            if not await self._one(name, kinds):
                await asyncio.sleep(LOOK_EVERY_S)
                continue
            if first:
                first.pop()
            rounds += 1
            if rounds % PROVE_EVERY == 0:
                await self._prove_idle()
                self._gate.set()
                self._tell(rounds, kills)
            if self._verdict.faults[Promise.NOT_RECOVERED]:
                return

    async def proofs(self, again: int, seed: int) -> None:
        """With all at rest: what is held, what is stored, what is answered without a cache."""
        await self._prove_idle()
        verdict, account = self._verdict, self._verdict.account
        if verdict.faults[Promise.NOT_RECOVERED]:
            return
        verdict.faults[Promise.LOST_TURNS] += await proofs.stored_otherwise(self._door, account)
        verdict.checked_turns = sum(len(chat.turns) for chat in account.chats)
        purge = {"everything": True}
        await asyncio.to_thread(
            ask_socket, self._config.paths.admin_socket, "POST", "/cache/purge", purge
        )
        verdict.made_again = min(again, verdict.checked_turns)
        verdict.faults[Promise.WRONG_ANSWERS] += await proofs.answered_otherwise(
            self._door, account, sample=again, seed=seed
        )

    async def _one(self, name: str, kinds: dict[str, Kind]) -> bool:
        """One fault, with more on its heels or alone, to the recovery; False where it hit nothing."""
        victim, verdict = self._victim, self._verdict
        states = victim.units.states
        before = {unit: state.starts for unit, state in states.items()}
        restarts = set(kinds[name].restarts)
        began = time.monotonic()
        if not await self._do(name, kinds):
            return False
        is_alone = victim.random.random() < 0.5
        if not is_alone:
            for _ in range(victim.random.randint(1, MORE_KILLS_MAX)):
                await asyncio.sleep(victim.random.uniform(0, MORE_WITHIN_S))
                (more,) = victim.random.choices(MORE, MORE_WEIGHTS)
                await self._do(more, kinds)
        over = time.monotonic()
        try:
            async with asyncio.timeout(RECOVER_S_MAX):
                await self._restarted({unit: before[unit] for unit in restarts} if is_alone else {})
                whole = time.monotonic()
                answered = await self._answered(began if is_alone else over)
        except TimeoutError:
            late = [unit for unit, state in states.items() if not state.is_ready]
            reasons = await self._reasons()
            verdict.faults[Promise.NOT_RECOVERED].append(
                f"{name}: not after {RECOVER_S_MAX:g} s; not ready: {late}; /ready: {reasons}"
            )
            return True
        if is_alone:
            verdict.recoveries[name].whole_s.append(whole - began)
            verdict.recoveries[name].answered_s.append(answered - began)
        return True

    async def _do(self, name: str, kinds: dict[str, Kind]) -> bool:
        """Do it and count it; False where there was nothing to do it to."""
        is_done = await kinds[name].do(self._victim)
        self._verdict.account.broken_at = time.monotonic()
        if not is_done:
            return False
        self._verdict.recoveries[name].done += 1
        self._verdict.killed += kinds[name].kills
        return True

    async def _restarted(self, before: dict[str, int]) -> None:
        """Until these units were started since, all are ready, and so is the whole."""
        states = self._victim.units.states
        while (  # noqa: ASYNC110 - state of other processes
            any(states[unit].starts <= starts for unit, starts in before.items())
            or not self._victim.units.are_ready
            or await self._reasons() is not None
        ):
            await asyncio.sleep(LOOK_EVERY_S)

    async def _answered(self, since: float) -> float:
        """When the first turn that was sent after `since` was acknowledged."""
        done_at = self._verdict.account.done_at
        while True:
            found = [done for sent, done in done_at[-200:] if sent >= since]
            if found:
                return min(found)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _reasons(self) -> object | None:
        """Why the product says that it is not ready; None when it is."""
        try:
            async with asyncio.timeout(READY_S_MAX):
                status, told = await self._door.json("GET", "/ready")
        except (aiohttp.ClientError, TimeoutError) as error:
            return repr(error)
        return None if status == 200 else told

    async def _prove_idle(self) -> None:
        """Nobody talks, all is written, and nothing is held. Leaves the gate closed."""
        verdict = self._verdict
        self._gate.clear()
        while any(chatter.is_talking for chatter in self._chatters):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY_S)
        try:
            await proofs.until_calm(self._door)
            verdict.faults[Promise.LEAKED] += await proofs.leaked(self._config.paths.engine_socket)
            verdict.checked_calm += 1
        except TimeoutError as error:
            verdict.faults[Promise.NOT_RECOVERED].append(str(error))
        left = [
            process.pid
            for unit, process in self._victim.units.processes()
            if unit == "left behind" and process.is_running() and process.status() != "zombie"
        ]
        verdict.faults[Promise.LEAKED] += [f"process {pid} belongs to no unit" for pid in left]

    def _tell(self, rounds: int, kills: int) -> None:
        verdict = self._verdict
        print(
            f"{verdict.killed} of {kills} killed in {rounds} rounds, "
            f"{verdict.account.acknowledged} turns acknowledged, "
            f"{sum(map(len, verdict.faults.values())) + len(verdict.account.wrong)} found wrong",
            flush=True,
        )


def _disk(folder: Path, resources: ExitStack, verdict: Verdict) -> SmallDisk | None:
    reason = disk.why_not()
    if reason is None:
        try:
            return resources.enter_context(
                SmallDisk(folder / "disk.img", folder / "disk", size_bytes=DISK_BYTES)
            )
        except OSError as error:
            reason = str(error)
    verdict.not_done.append(f"a full disk, and loss of what was not synced ({reason})")
    return None


def _clock(folder: Path, verdict: Verdict) -> WallClock | None:
    reason = clock.why_not()
    if reason is None:
        return WallClock(folder)
    verdict.not_done.append(f"jumps of the clock ({reason})")
    return None


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 1 on")
    return int(text)


@contextlib.contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(mode=0o755)
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


if __name__ == "__main__":
    sys.exit(main())
