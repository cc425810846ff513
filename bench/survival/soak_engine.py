"""The scripted engine as a unit of its own: `python -m bench.survival.soak_engine SOCKET`.

Answers each prompt with token ids that follow from it, at a reader's pace. Computes nothing.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import zlib
from pathlib import Path

from appliance.service_manager import service_manager
from appliance.wire.frames import Generate
from tests.model_fixtures import SPECIALS, vocabulary
from tests.scripted_engine import Script, ScriptedEngine

CONTEXT_TOKENS = 4096
TOKENS = (8, 48)
TOKEN_S = 0.002
FORGET_EVERY_S = 1.0


def script_for(request: Generate) -> Script:
    """A reply of 8 to 48 tokens, the same for the same prompt."""
    source = random.Random(zlib.crc32(request.token_ids))
    ids = source.choices(range(len(SPECIALS), len(vocabulary())), k=source.randint(*TOKENS))
    return Script(token_ids=tuple(ids), token_s=TOKEN_S, leaves_node=True)


async def serve(socket_path: Path) -> None:
    """Until SIGTERM."""
    manager = service_manager(os.environ)
    engine = ScriptedEngine(
        socket_path, vocab_size=len(vocabulary()), context_tokens=CONTEXT_TOKENS, running_max=256
    )
    engine.choose = script_for
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    await engine.start()
    manager.ready("serving")
    while not stopping.is_set():
        manager.alive()
        # What tests look at afterwards, and nobody here.
        for record in (engine.generated, engine.started, engine.cancelled):
            record.clear()
        try:
            async with asyncio.timeout(FORGET_EVERY_S):
                await stopping.wait()
        except TimeoutError:
            continue
    await engine.stop()


if __name__ == "__main__":
    address = Path(sys.argv[1])
    address.unlink(missing_ok=True)
    asyncio.run(serve(address))
