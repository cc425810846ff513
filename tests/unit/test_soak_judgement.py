"""What `bench.soak` and `bench.chaos` call flat, explained, a leak, and proved."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from appliance.config import KIB, MIB, Config, ModelSource, Paths
from bench import chaos
from bench.chaos import Chaos
from bench.soak import Soak
from bench.survival import chats
from bench.survival.chats import Account, Chat, Chatter, Promise, Told
from bench.survival.faults import Kind, Victim, possible
from bench.survival.proofs import told_in_logs
from bench.survival.samples import PAGES, Judged, Sample, judge
from bench.survival.units import Units
from bench.survival.users import Traffic
from bench.survival.verdict import Outcome, Verdict

TURNS = 10_000


def judged(name: str, at: float, a_turn: float) -> Judged:
    """A series that grows by so much with each turn, over two waves with some noise."""
    samples = [
        Sample(wave=turn // (TURNS // 2), turns=turn, values={name: at + a_turn * turn + turn % 3})
        for turn in range(0, TURNS, 100)
    ]
    (found,) = judge(samples, last_wave=1)
    return found


@pytest.mark.parametrize(
    ("name", "at", "a_turn", "is_flat", "passed"),
    [
        ("server memory", 60 * MIB, 0, True, True),
        ("server memory", 60 * MIB, 100, True, True),
        ("server memory", 60 * MIB, 2 * KIB, False, False),
        ("engine memory", 800 * MIB, 8 * KIB, False, False),
        ("server descriptors", 60, 0.01, False, False),
        ("server descriptors", 60, 0.0001, True, True),
        ("engine threads", 7, 0.002, False, False),
        ("engine pages_leased", 0, 0.1, False, False),
        ("database", 30 * MIB, 4 * KIB, False, True),
        ("database", 30 * MIB, 12 * KIB, False, False),
        ("postgres shared", 60 * MIB, 4 * KIB, False, True),
        ("postgres shared", 160 * MIB, 10 * KIB, False, False),
    ],
)
def test_growth_is_found_where_nothing_explains_it(
    name: str, at: float, a_turn: float, is_flat: bool, passed: bool
) -> None:
    found = judged(name, at, a_turn)
    assert (found.is_flat, found.passed) == (is_flat, passed)
    assert found.a_turn == pytest.approx(a_turn, abs=0.01)


def test_one_wave_is_too_short_to_judge() -> None:
    assert judge([Sample(wave=0, turns=1, values={"journal": 1.0})], last_wave=0) == []


def soak_of(folder: Path, traffic: Traffic, *, is_real: bool) -> Soak:
    """A soak of no process at all."""
    config = Config(
        model=ModelSource(path=folder, name="m"), paths=Paths(data_dir=folder, run_dir=folder)
    )
    units = Units((), folder, {})
    units.listening.close()
    return Soak(units, config, traffic, is_real=is_real)


@pytest.mark.parametrize(("turns", "waves"), [(0, 0), (5, 2), (10, 1)])
def test_a_day_that_was_too_short_to_judge_has_not_passed(
    tmp_path: Path, turns: int, waves: int
) -> None:
    traffic = Traffic(wanted=10, new_tokens=1, turns=turns)
    soak = soak_of(tmp_path, traffic, is_real=False)
    soak._samples += [
        Sample(wave=wave, turns=turns, values={"journal": 1}) for wave in range(waves)
    ]
    assert soak.lines()[-1] == "NOT PROVED"
    traffic.turns = 10
    soak._samples += [Sample(wave=wave, turns=10, values={"journal": 1}) for wave in (0, 1)]
    assert soak.lines()[-1] == "PASSED"
    soak.found.append("something")
    assert soak.lines()[-1] == "FAILED"


@pytest.mark.parametrize(
    ("last_tells", "outcome"), [(10, "PASSED"), (9, "PASSED"), (5, "NOT PROVED"), (0, "NOT PROVED")]
)
def test_a_series_that_the_engine_did_not_tell_is_not_taken_for_flat(
    tmp_path: Path, last_tells: int, outcome: str
) -> None:
    soak = soak_of(tmp_path, Traffic(wanted=10, new_tokens=1, turns=10), is_real=True)
    pages = {f"engine {name}": 500.0 for name in PAGES}
    soak._samples += [Sample(wave=0, turns=1, values=pages) for _ in range(10)]
    soak._samples += [
        Sample(wave=1, turns=10, values=pages if n < last_tells else {}) for n in range(10)
    ]
    assert soak.lines()[-1] == outcome


def test_a_series_that_only_the_wave_before_the_last_sample_has_is_judged() -> None:
    samples = [Sample(wave=0, turns=1, values={"server memory": 60.0 * MIB})]
    samples += [Sample(wave=1, turns=9, values={"server memory": 90.0 * MIB}) for _ in range(3)]
    (one,) = judge([*samples, Sample(wave=1, turns=10, values={})], last_wave=1)
    assert not one.passed


def proved(**other: int) -> Verdict:
    verdict = Verdict(seed=1, kills=5, account=Account(), killed=5)
    verdict.checked_calm = verdict.checked_turns = verdict.made_again = 1
    verdict.recoveries["kill server"].done = 5
    for name, figure in other.items():
        setattr(verdict, name, figure)
    return verdict


@pytest.mark.parametrize("lacking", ["killed", "checked_calm", "checked_turns", "made_again"])
def test_a_run_that_left_something_untried_has_not_passed(lacking: str) -> None:
    verdict = proved(**{lacking: 0})
    verdict.close(kinds=["kill server"])
    assert (verdict.outcome, verdict.outcome.exit_code) == (Outcome.NOT_PROVED, 2)
    assert len(verdict.not_done) == 1
    whole = proved()
    whole.close(kinds=["kill server"])
    assert whole.lines()[-1] == "PASSED"
    other = proved()
    other.close(kinds=["kill server", "power cut"])
    assert other.not_done == ["power cut"]
    assert other.outcome is Outcome.NOT_PROVED
    whole.not_done.append("jumps of the clock (no compiler)")
    assert whole.lines()[-1] == "NOT PROVED"
    whole.faults[Promise.LOST_TURNS].append("one")
    assert whole.lines()[-1] == "FAILED"


@pytest.mark.parametrize(
    "words", [["--only", "nonsense"], ["--kills", "0"], ["--kills", "-1"], ["--kills", "x"]]
)
def test_chaos_refuses_what_it_cannot_do(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["chaos", *words])
    with pytest.raises(SystemExit) as ended:
        chaos.main()
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err


@pytest.mark.parametrize("only", [["freeze server"], ["kill server", "disk full"], None])
async def test_a_schedule_ends_once_enough_was_done_whatever_it_is_made_of(
    only: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = Victim(units=None, disk=None, clock=None, random=random.Random(1))  # type: ignore[arg-type]
    verdict = Verdict(seed=1, kills=12, account=Account())
    monkeypatch.setattr(chaos, "LOOK_EVERY_S", 0)
    monkeypatch.setattr(chaos, "PROVE_EVERY", 1_000)
    tries = 0

    async def one(_: Chaos, name: str, kinds: dict[str, Kind]) -> bool:
        nonlocal tries
        tries += 1
        if tries % 3:
            return False
        verdict.killed += kinds[name].kills
        verdict.recoveries[name].done += 1
        return True

    monkeypatch.setattr(Chaos, "_one", one)
    run = Chaos(victim, None, None, verdict, [], asyncio.Event())  # type: ignore[arg-type]
    async with asyncio.timeout(30):
        await run.faults(12, only)
    done = sum(recovery.done for recovery in verdict.recoveries.values())
    assert (done if only == ["freeze server"] else verdict.killed) >= 12
    wanted = {"kill server"} if only and "kill server" in only else set(only or possible(victim))
    assert set(verdict.recoveries) == wanted, (
        "each kind once, and one that hit nothing is tried again"
    )


async def test_a_turn_is_stuck_once_nothing_was_done_to_the_product_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chats, "TURN_S_MAX", 0.05)
    monkeypatch.setattr(chats, "RETRY_S", (0.0, 0.01))
    account, tries = Account(), 0

    class Away:
        async def events(self, _path: str, _body: object) -> tuple[int, list[tuple[str, Any]]]:
            nonlocal tries
            tries += 1
            if tries < 50:
                account.broken_at = time.monotonic()
            return 503, [("refused", {"error": {"code": "engine_unavailable"}})]

    door: Any = Away()
    chatter = Chatter(door, account, seed=1, turns=1, gate=asyncio.Event())
    async with asyncio.timeout(60):
        assert not await chatter._turn(Chat(conversation="c"))
    assert tries > 50, "killed again and again is not stuck"
    (stuck,) = account.wrong
    assert (stuck.promise, stuck.conversation) == (Promise.STUCK, "c")


DONE = {"message": {"id": "r", "text": "of stuck terminals"}, "finish_reason": "stop"}


@pytest.mark.parametrize(
    ("status", "events", "promise"),
    [
        (404, [("refused", {"error": {"code": "not_found"}})], Promise.LOST_TURNS),
        (400, [("refused", {"error": {"code": "stuck in terminal 404"}})], Promise.WRONG_ANSWERS),
        (200, [("delta", {"text": "a"})], Promise.STUCK),
        (200, [("delta", {"text": "of a 404"}), ("done", DONE)], Promise.WRONG_ANSWERS),
    ],
)
async def test_what_is_wrong_is_put_under_the_promise_that_it_breaks_whatever_its_words(
    status: int, events: list[tuple[str, Any]], promise: Promise
) -> None:
    class Answering:
        async def events(self, _path: str, _body: object) -> tuple[int, list[tuple[str, Any]]]:
            return status, events

    account = Account()
    door: Any = Answering()
    chatter = Chatter(door, account, seed=1, turns=1, gate=asyncio.Event())
    await chatter._attempt(Chat(conversation="c"), {"text": "t"})
    verdict = Verdict(seed=1, kills=0, account=account)
    verdict.close(kinds=())
    assert [found for found, sentences in verdict.faults.items() if sentences] == [promise]
    assert list(verdict.as_json()["faults"]) == [promise.value for promise in Promise]


def test_what_was_said_is_found_in_a_log_and_words_that_any_log_has_are_not(tmp_path: Path) -> None:
    told = [Told(text=text, reply_id="r", reply="", finish_reason="stop") for text in SAID]
    account = Account(chats=[Chat(conversation="c", turns=told)])
    (tmp_path / "postgres.log").write_text("LOG: writes data to the disk\n")
    assert told_in_logs(account, [tmp_path]) == []
    (tmp_path / "server.log").write_text(f"failed on {SAID[1]}\n")
    (found,) = told_in_logs(account, [tmp_path])
    assert found.startswith("server.log")


SAID = ("a to", "the weather of the northern coast")
CUT = """
import asyncio, random, sys
from pathlib import Path
from bench.survival.faults import KINDS, Victim
from bench.survival.units import Unit, Units

async def run():
    unit = Unit(name="server", arguments=("-c", "import time; time.sleep(60)"))
    async with asyncio.timeout(20), Units((unit,), Path(sys.argv[1]), {}) as units:
        victim = Victim(units=units, disk=None, clock=None, random=random.Random(1))
        killed = []
        for name, starts in (("power cut", 1), ("kill server", 2)):
            while units.states["server"].starts < starts or units.main("server") is None:
                await asyncio.sleep(0.01)
            killed.append(await KINDS[name].do(victim) and KINDS[name].kills)
        print(*killed)

asyncio.run(run())
"""


def test_a_power_cut_takes_all_and_is_counted_as_no_kill(tmp_path: Path) -> None:
    # In a process of its own: units end whatever their process has as children.
    ended = subprocess.run(
        (sys.executable, "-c", CUT, str(tmp_path)),
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=60,
        check=False,
    )
    assert ended.stdout.split() == ["False", "True"], ended.stderr
