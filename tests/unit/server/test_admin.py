"""The cache commands over the admin socket of a real server with a real engine on a tiny model."""

from __future__ import annotations

import socket
import stat
from collections.abc import AsyncIterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import aiohttp
import pytest
import torch

from appliance.chat.events import TurnDone
from appliance.chat.params import GenerationParams
from appliance.chat.plan import Place
from appliance.cli.main import main
from appliance.config import (
    ApiKey,
    Config,
    DatabaseConfig,
    ModelSource,
    Paths,
    ServerConfig,
    dump_config,
)
from appliance.engine.service import EngineService
from appliance.model.decoder import Decoder
from appliance.prompt.chat_format.model_text import ModelText
from appliance.server.admin import serving_admin
from appliance.server.auth import LOCAL_TENANT, Keys
from appliance.server.services import Services
from appliance.store.records import FinishedTurn, NewMessage
from appliance.wire.frames import Sampling
from tests.engine_fixtures import decoder, engine_in_thread, model_directory
from tests.model_fixtures import vocabulary
from tests.unit.server.command_line import CommandLine
from tests.unit.server.door import served

__all__ = ["decoder", "model_directory"]

# Control tokens end a reply, and bytes that are no character are encoded again.
ODD = [i for i, piece in enumerate(vocabulary()) if i < 3 or not piece.replace("Ġ", "").isascii()]
SHORT = GenerationParams(
    sampling=Sampling(temperature=0, logit_bias=dict.fromkeys(ODD, -100.0)), new_tokens_max=6
)


@dataclass(slots=True, kw_only=True)
class Operator(CommandLine):
    """Somebody who runs `appliance cache …` beside a real engine."""

    area = ("cache",)
    services: Services
    engine: EngineService

    async def turn(self, conversation: UUID, text: str, tenant: str = LOCAL_TENANT) -> TurnDone:
        events = self.services.turns.send(
            tenant=tenant,
            conversation_id=conversation,
            text=text,
            parent=Place.HEAD,
            turn_key=None,
            params=SHORT,
        )
        *_, done = [event async for event in events]
        assert isinstance(done, TurnDone)
        return done

    async def open(self, tenant: str = LOCAL_TENANT) -> UUID:
        opened = await self.services.conversations.open(tenant=tenant, character=None)
        return opened.conversation_id


@pytest.fixture
def server() -> ServerConfig:
    return ServerConfig()


@pytest.fixture
async def operator(
    decoder: Decoder,
    model_directory: Path,
    database_url: str,
    tmp_path: Path,
    server: ServerConfig,
    capsys: pytest.CaptureFixture[str],
) -> AsyncIterator[Operator]:
    config = Config(
        model=ModelSource(path=model_directory, name="tiny"),
        paths=Paths(data_dir=tmp_path, run_dir=tmp_path),
        server=server,
        database=DatabaseConfig(url=database_url),
    )
    path = tmp_path / "box.toml"
    path.write_text(dump_config(config))
    text = ModelText.load(model_directory, now=datetime(2026, 1, 31))
    with engine_in_thread(decoder, config.paths.engine_socket, pin_pages_max=16) as engine:
        async with (
            served(config, text) as (_, services),
            serving_admin(services, Keys.from_config(server)),
        ):
            yield Operator(config=path, services=services, engine=engine, capsys=capsys)
            await services.turns.close()


async def test_a_conversation_is_explained_pinned_audited_and_purged(operator: Operator) -> None:
    opened = await operator.open()
    await operator.turn(opened, "hello world")
    await operator.turn(opened, "hello again")
    name = str(opened)
    explained = await operator.ask("explain", name)
    assert explained["cached_tokens"] == explained["tokens"]
    assert (explained["cause"], explained["first_difference"]) == ("cached", None)
    assert sum(part["cached"] for part in explained["parts"]) == explained["tokens"]
    assert explained["parts"][-1]["source"] == "message"
    assert explained["missing_pages"] == explained["host_pages"] == 0
    assert explained["device_pages"] == -(-explained["tokens"] // 16)
    for role in ("system", "user", "assistant"):
        found = explained["by_role"][role]
        assert found["cached"] == found["tokens"] > 0
    assert "all of it is cached" in await operator.run("explain", name)
    stats = await operator.ask("stats")
    assert stats["index_coverage"] == {"system": 1.0, "user": 1.0, "assistant": 1.0}
    assert "coverage      system 100.0%" in await operator.run("stats")

    pages = explained["device_pages"]
    assert await operator.ask("pin", name) == {"pages": pages}
    assert (await operator.ask("stats"))["engines"]["engine"]["pages_pinned"] == pages
    assert await operator.run("unpin", name) == f"unpinned {pages} pages\n"

    audited = await operator.ask("audit", name)
    assert [(path["tokens"], path["cause"]) for path in audited["paths"]] == [
        (explained["tokens"], None)
    ]
    assert "right" in await operator.run("audit", "--tokens", "100")

    assert (await operator.ask("purge", name))["pages"] > 0
    purged = await operator.ask("explain", name)
    assert purged["by_role"]["user"]["cached"] <= 12, "the format's own text, and no word of it"
    assert purged["by_role"]["assistant"]["cached"] == 0
    assert purged["first_difference"]["role"] == "user"
    assert "place    token" in await operator.run("explain", name)
    assert (await operator.turn(opened, "and now")).finish_reason == "length"


async def test_wrong_pages_are_told_and_give_an_exit_code(operator: Operator) -> None:
    opened = await operator.open()
    await operator.turn(opened, "hello world")
    with torch.inference_mode():
        operator.engine._auditor._paths._cache.data[:, :, :, :, 5] += 0.5
    answer = await operator.ask("audit", str(opened), code=1)
    (path,) = answer["paths"]
    assert (path["cause"], path["position"]) == ("wrong_content", 5)
    assert answer["alarm"] is True
    assert path["pages_dropped"] > 0
    again = await operator.turn(opened, "what was it?")
    assert again.finish_reason == "length"
    assert "ALARM" in await operator.run("stats")
    assert (await operator.ask("audit", str(opened)))["paths"][0]["cause"] is None


async def test_the_first_difference_says_who_changed_what(operator: Operator) -> None:
    opened = await operator.open()
    await operator.turn(opened, "hello world, how are you today my friend?")
    # Stored by a process whose engine is not this one: another version, and one of another tokenizer.
    text = "hello world, what is new today my friend?"
    for fingerprint, cause in ((None, "edited message"), ("other", "tokenizer")):
        await store_version(operator.services, opened, text, fingerprint)
        told = await operator.ask("explain", str(opened))
        difference = told["first_difference"]
        assert (told["cause"], difference["role"]) == (cause, "user")
        assert difference["before"].endswith("hello world,")
        assert difference["asked"].startswith(" w")
        assert difference["found"].startswith(" h")
    assert cause in await operator.run("explain", str(opened))


async def store_version(
    services: Services, conversation: UUID, text: str, fingerprint: str | None
) -> None:
    """A first message and its reply, as another process would have stored them."""
    tokenizer = services.tokenizer
    turn = FinishedTurn(
        turn_key=uuid4(),
        tenant=LOCAL_TENANT,
        conversation_id=conversation,
        parent_id=None,
        user=NewMessage(
            message_id=uuid4(),
            role="user",
            text=text,
            token_ids=tokenizer.encode(text),
            tokenizer=fingerprint or tokenizer.fingerprint,
        ),
        assistant=NewMessage(message_id=uuid4(), role="assistant", text="ok", finish_reason="stop"),
    )
    await services.turns._ledger.append_turn(turn)


@pytest.mark.parametrize(
    "server",
    [
        ServerConfig(
            api_keys=tuple(
                ApiKey(tenant=name, sha256=digit * 64)
                for name, digit in (("anna", "a"), ("ben", "b"))
            )
        )
    ],
)
async def test_a_tenant_is_named_where_there_are_several_and_alone_is_purged(
    operator: Operator,
) -> None:
    annas, bens = await operator.open("anna"), await operator.open("ben")
    for tenant, opened in (("anna", annas), ("ben", bens)):
        await operator.turn(opened, f"hello, I am {tenant}", tenant)
    assert "2 tenants are configured" in await operator.run("explain", str(annas), code=2)
    assert "no such tenant" in await operator.run("purge", "--tenant", "eve", code=2)
    await operator.run("explain", str(annas), "--tenant", "ben", code=2)
    await operator.run("purge", "--tenant", "anna")
    left = await operator.ask("explain", str(annas), "--tenant", "anna")
    assert left["by_role"]["assistant"]["cached"] == 0
    kept = await operator.ask("explain", str(bens), "--tenant", "ben")
    assert kept["cached_tokens"] == kept["tokens"]


async def test_what_cannot_be_asked_is_refused_with_the_reason(operator: Operator) -> None:
    nowhere, opened = str(uuid4()), await operator.open()
    assert "no conversation" in (await operator.run("explain", nowhere, code=2)).lower()
    assert "send a message first" in await operator.run("pin", str(opened), code=2)
    assert "say what to purge" in await operator.run("purge", code=2)
    assert "say what to purge" in await operator.run("purge", str(opened), "--all", code=2)
    with pytest.raises(SystemExit):
        main(["cache", "explain", "no-uuid"])
    assert "expected a conversation's id" in operator.capsys.readouterr().err
    await assert_socket_takes_only_what_it_knows(operator)


async def assert_socket_takes_only_what_it_knows(operator: Operator) -> None:
    """The socket is of this user alone; bad questions have an envelope each."""
    path = operator.services.config.paths.admin_socket
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session:
        for method, where, body, status in (
            ("GET", "/nowhere", None, 404),
            ("POST", "/cache/stats", {}, 404),
            ("GET", "/cache/conversations/x", None, 400),
            ("POST", "/cache/purge", {}, 400),
            ("POST", "/cache/purge", {"everything": True, "tenant": "local"}, 400),
            ("POST", "/cache/audit", {"tokens": 0}, 400),
            ("POST", "/cache/audit", {"token": 5}, 400),
        ):
            async with session.request(method, f"http://box{where}", json=body) as answer:
                assert answer.status == status, where
                assert (await answer.json())["error"]["code"]


@contextmanager
def listening(path: Path) -> Any:
    """A socket that takes connections and says nothing."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        yield


@pytest.mark.parametrize("left_over", [False, True])
def test_without_an_appliance_the_command_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], left_over: bool
) -> None:
    if left_over:
        (tmp_path / "run").mkdir()
        with listening(tmp_path / "run" / "admin.sock"):
            pass
    words: Sequence[str] = ("cache", "stats", "--data-dir", str(tmp_path))
    assert main(words) == 2
    told = capsys.readouterr().err
    assert told == (
        f"appliance: no appliance runs here: nobody listens at {tmp_path}/run/admin.sock\n"
    )
