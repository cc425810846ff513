"""Formats that are asked about shapes they have not seen: their process never runs on the event loop."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from appliance.chat.completion import Completions
from appliance.chat.conversations import Conversations
from appliance.chat.params import ChatLimits, GenerationParams
from appliance.chat.running import RunningTurns
from appliance.chat.turn import Turns
from appliance.prompt.chat_format.chat_format import ChatFormat
from appliance.prompt.chat_format.model_text import ModelText
from appliance.prompt.chat_format.template_runner import Case, Rendered, TemplateRunner
from appliance.prompt.messages import ChatMessage
from appliance.store.ledger import Ledger
from appliance.wire.client import EngineClient
from tests.scripted_engine import ScriptedEngine
from tests.unit.chat.conftest import Vocabulary, catalog_of
from tests.unit.chat.driver import TENANT, read, send
from tests.unit.prompt.templates import LAST_IS_SPECIAL, SKIPS_EMPTY, runner

ASKED = (
    ChatMessage(role="user", content="x"),
    ChatMessage(role="assistant", content=""),
    ChatMessage(role="user", content="y"),
)


@pytest.mark.parametrize("template", [LAST_IS_SPECIAL, SKIPS_EMPTY], ids=["whole", "holes"])
async def test_a_format_that_runs_its_template_holds_up_no_other_request(
    template: str,
    ledger: Ledger,
    running: RunningTurns,
    client: EngineClient,
    conversations: Conversations,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    model: ModelText,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chat_format = ChatFormat.derive(runner(template), model.tokenizer)
    assert chat_format.may_run_process
    assert not model.chat_format.may_run_process
    slow = replace(model, chat_format=chat_format)
    ran, render = [], TemplateRunner.render

    def recorded(self: TemplateRunner, cases: Sequence[Case]) -> list[Rendered]:
        ran.append(threading.current_thread())
        return render(self, cases)

    monkeypatch.setattr(TemplateRunner, "render", recorded)
    engine.script = vocabulary.script("one")
    completions = Completions(engine=client, model=slow, limits=ChatLimits())
    params = GenerationParams()
    await read(completions.run(tenant=TENANT, messages=ASKED, params=params))
    assert ran
    turns = Turns(
        ledger=ledger,
        running=running,
        engine=client,
        model=slow,
        catalog=catalog_of(ledger),
        limits=ChatLimits(),
    )
    opened = await conversations.open(tenant=TENANT)
    for text in ("first", "second", "third"):
        await read(send(turns, opened.conversation_id, text))
    await turns.close()
    assert threading.main_thread() not in ran
