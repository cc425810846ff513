"""Whether a call leaves the interpreter to other threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def turns_while(work: Callable[[], object]) -> int:
    """How often this thread ran, a millisecond apart, until `work` was done in another."""
    worker = threading.Thread(target=work)
    worker.start()
    turns = 0
    while worker.is_alive():
        time.sleep(0.001)
        turns += 1
    worker.join()
    return turns
