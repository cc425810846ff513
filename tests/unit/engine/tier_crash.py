"""Engines over one slot file, each killed at a random moment: a program, for `test_tiers.py`.

One process loads the libraries and forks an engine after the other; it computes nothing itself, so that
no thread is lost in a fork.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import torch

from appliance._core import set_kernel_threads
from appliance.model.decoder import load_model
from tests.unit.engine.driver import Driver

KILLS = 4
CHATS = 12


def chat(number: int) -> list[int]:
    source = random.Random(number)
    return [source.randrange(3, 260) for _ in range(60 + 5 * number)]


def serve(model: Path, path: Path, seed: int, runs: int) -> dict[str, float]:
    """Chats that go through all tiers, each compared with a recomputation."""
    torch.set_num_threads(1)
    set_kernel_threads(1)
    driver = Driver(
        load_model(model, "cpu", 1), pages=14, host_slots=3, disk_slots=60, kv_slots=path
    )
    source = random.Random(seed)
    for _ in range(runs):
        run = driver.run(chat(source.randrange(CHATS)))
        driver.compare_with_recomputation(run)
    stats = driver.tiers.stats()
    driver.tiers.close()
    return stats


def in_a_child(model: Path, path: Path, seed: int, kill_after_s: float | None) -> int:
    child = os.fork()
    if child == 0:
        code = 3
        try:
            stats = serve(model, path, seed, 20 if kill_after_s is None else 10**9)
            print("restored", stats["tier_restored_pages"], flush=True)
            code = 0 if stats["tier_restored_pages"] > 0 else 4
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> int:
    model, path = Path(sys.argv[1]), Path(sys.argv[2])
    source = random.Random(11)
    for seed in range(KILLS):
        code = in_a_child(model, path, seed, source.uniform(0.5, 1.5))
        if code != -signal.SIGKILL:
            return 1
    return 0 if in_a_child(model, path, KILLS, None) == 0 else 2


if __name__ == "__main__":
    sys.exit(main())
