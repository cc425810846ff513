"""The chat layer over a scripted engine on a real socket, and a real PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import pytest

from appliance._core import Tokenizer
from appliance.chat.catalog import Catalog
from appliance.chat.completion import Completions
from appliance.chat.conversations import Conversations
from appliance.chat.params import ChatLimits
from appliance.chat.running import RunningTurns
from appliance.chat.turn import Turns
from appliance.prompt.characters import Characters
from appliance.prompt.chat_format.model_text import ModelText
from appliance.store.ledger import Ledger
from appliance.store.pool import Pool
from appliance.store.prompt_registry import PromptRegistry
from appliance.wire.client import EngineClient
from tests.characters import bundle_of, characters_of
from tests.postgres_fixtures import cluster, database_url, ledger, pool
from tests.script_model import EOS, write_script_model
from tests.scripted_engine import Script, ScriptedEngine

__all__ = ["cluster", "database_url", "ledger", "pool"]

PIECES = (
    "ok ",
    "one",
    " two",
    " three",
    " four",
    "ABC",
    "DEF",
    "G",
    "HI",
    "J",
    "K",
    "\x00",
    "~\x00",
)
BYTES = (
    b"\xf0\x9f",
    b"\x98\x80",
    b"\xe4",
    b"\xbd\xa0",
    b"\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f",
    b"\x91\xa7",
)

CHARACTERS = characters_of(
    bundle_of("assistant", system="Be brief."),
    bundle_of("mara", system="You are Mara.", greeting="You made it!"),
)


def catalog_of(ledger: Ledger) -> Catalog:
    """The characters of these tests, as if they were read from the ledger's database."""
    return Catalog(PromptRegistry(ledger._pool), current=CHARACTERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The token ids of the pieces a script may emit."""

    ids: dict[bytes, int]

    def script(self, *pieces: str | bytes, **settings: object) -> Script:
        """A script that emits these pieces, then the end of the reply."""
        raw = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        token_ids = tuple(self.ids[piece] for piece in raw)
        return Script(token_ids=token_ids, **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def script_directory(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Vocabulary]:
    directory = tmp_path_factory.mktemp("script-model")
    ids = write_script_model(directory, [*(piece.encode() for piece in PIECES), *BYTES, EOS])
    return directory, Vocabulary(ids=ids)


@pytest.fixture(scope="session")
def vocabulary(script_directory: tuple[Path, Vocabulary]) -> Vocabulary:
    return script_directory[1]


@pytest.fixture(scope="session")
def model(script_directory: tuple[Path, Vocabulary]) -> ModelText:
    return ModelText.load(script_directory[0], now=datetime(2026, 1, 31))


@pytest.fixture(scope="session")
def tildeless(script_directory: tuple[Path, Vocabulary], model: ModelText) -> ModelText:
    """The model with `~` as a control token: no text that holds one can be encoded."""
    source = json.loads((script_directory[0] / "tokenizer.json").read_text())
    tilde = {**source["added_tokens"][0], "id": source["model"]["vocab"]["~"], "content": "~"}
    source["added_tokens"].append(tilde)
    tokenizer = Tokenizer(json.dumps(source).encode(), memo_bytes_max=1 << 20)
    chat_format = replace(model.chat_format, tokenizer=tokenizer, _table=None, _pieces={})
    return replace(model, tokenizer=tokenizer, chat_format=chat_format)


@pytest.fixture
async def engine(model: ModelText, tmp_path: Path) -> AsyncIterator[ScriptedEngine]:
    scripted = ScriptedEngine(tmp_path / "engine.sock", vocab_size=model.tokenizer.vocab_size)
    await scripted.start()
    yield scripted
    await scripted.stop()


@pytest.fixture
async def client(engine: ScriptedEngine, tmp_path: Path) -> AsyncIterator[EngineClient]:
    async with EngineClient(tmp_path / "engine.sock") as connected:
        await connected.wait_ready()
        yield connected


@pytest.fixture
def running() -> RunningTurns:
    return RunningTurns()


@pytest.fixture
def characters() -> Characters:
    return CHARACTERS


@pytest.fixture
def catalog(pool: Pool, characters: Characters) -> Catalog:
    return Catalog(PromptRegistry(pool), current=characters)


@pytest.fixture
def conversations(ledger: Ledger, running: RunningTurns, catalog: Catalog) -> Conversations:
    return Conversations(ledger=ledger, running=running, catalog=catalog)


@pytest.fixture
async def turns(
    ledger: Ledger,
    running: RunningTurns,
    client: EngineClient,
    model: ModelText,
    catalog: Catalog,
) -> AsyncIterator[Turns]:
    made = Turns(
        ledger=ledger,
        running=running,
        engine=client,
        model=model,
        catalog=catalog,
        limits=ChatLimits(),
    )
    yield made
    await made.close()


@pytest.fixture
def completions(client: EngineClient, model: ModelText) -> Completions:
    return Completions(engine=client, model=model, limits=ChatLimits())
