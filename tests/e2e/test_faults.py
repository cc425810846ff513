"""kill -9 of each process in the middle of eight streams loses no finished turn."""

from __future__ import annotations

import psutil
import pytest

from tests.e2e.box import Box, start_box, stop_box
from tests.e2e.chats import Chatter, wait_until

pytestmark = [pytest.mark.model, pytest.mark.slow]

STREAMS = 8


@pytest.mark.parametrize("victim", ["engine", "server", "postgres"])
def test_no_finished_turn_is_missing_after_a_kill(worn_box: Box, victim: str) -> None:
    box = worn_box
    box.wait_ready()
    chatters = [Chatter(box, box.create_conversation()) for _ in range(STREAMS)]
    for chatter in chatters:
        chatter.start()
    wait_until(lambda: all(c.done and c.deltas for c in chatters), 120)
    finished_before = sum(len(c.done) for c in chatters)
    old = box.child(victim).pid
    box.kill(victim)
    wait_until(lambda: sum(len(c.done) for c in chatters) >= finished_before + STREAMS, 120)
    for chatter in chatters:
        chatter.stopping.set()
    for chatter in chatters:
        chatter.join(120)
        assert not chatter.is_alive()
    assert box.child(victim).pid != old
    for chatter in chatters:
        stored = box.request("GET", f"/api/conversations/{chatter.conversation}")["messages"]
        texts = {message["id"]: message["text"] for message in stored}
        for message in chatter.done:
            assert texts[str(message["id"])] == message["text"]
    if victim != "postgres":
        assert any(c.errors for c in chatters), "the kill hit no stream: the test proves nothing"


def test_everything_stops_and_starts_again_with_its_chats(own_box: Box) -> None:
    conversation = own_box.create_conversation()
    own_box.send(conversation, "Hello!", max_tokens=8)
    children = psutil.Process(own_box.process.pid).children(recursive=True)
    assert stop_box(own_box) == 0
    # A zombie has ended; who reaps it is the machine's affair.
    assert not [c for c in children if c.is_running() and c.status() != psutil.STATUS_ZOMBIE]
    again = start_box(own_box.data_dir)
    try:
        stored = again.request("GET", f"/api/conversations/{conversation}")
        assert [m["role"] for m in stored["messages"]] == ["user", "assistant"]
        assert again.send(conversation, "And again.", max_tokens=8)[-1].name == "done"
    finally:
        assert stop_box(again) == 0
