"""The prompt registry on a real PostgreSQL: versions that stay, labels that move one step at a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from appliance.config import DatabaseConfig
from appliance.dbops.cluster.cluster import Cluster
from appliance.errors import (
    ApplianceError,
    Conflict,
    InvalidRequest,
    LabelProtected,
    NotFound,
    StorageUnavailable,
)
from appliance.store.ledger import Ledger
from appliance.store.pool import Pool, connect
from appliance.store.prompt_registry import PromptRegistry
from appliance.store.records import ConversationChange, Member, Scene
from tests.postgres.turns import new_conversation, talk, turn
from tests.postgres_fixtures import TEMPLATE, execute

A, B, C = "aa11" + "0" * 60, "aa22" + "0" * 60, "bb33" + "0" * 60
WHO: dict[str, Any] = {"author": "ana", "message": "why not"}


NAMES = ("mara", "ada")


@pytest.fixture(scope="module")
def shared_url(cluster: Cluster) -> Iterator[str]:
    """One migrated database for all tests of this file."""
    with asyncio.Runner() as runner:
        runner.run(execute(cluster, f"CREATE DATABASE registry_tests TEMPLATE {TEMPLATE}"))
        yield cluster.url("registry_tests")
        runner.run(execute(cluster, "DROP DATABASE registry_tests WITH (FORCE)"))


@pytest.fixture
async def pool(shared_url: str) -> AsyncIterator[Pool]:
    """A pool to the file's database, emptied: without the triggers that refuse it."""
    opened = await connect(shared_url, DatabaseConfig())
    await opened.execute(
        "SET session_replication_role = replica; TRUNCATE appliance.prompt_versions, "
        "appliance.prompt_files, appliance.prompt_labels, appliance.prompt_moves, "
        "appliance.conversations, appliance.messages CASCADE; RESET session_replication_role"
    )
    yield opened
    await asyncio.wait_for(opened.close(), 10)


@pytest.fixture
async def registry(pool: Pool) -> PromptRegistry:
    made = PromptRegistry(pool)
    for version in (A, B, C):
        await made.publish("mara", version, {"character.yaml": version.encode()}, **WHO)
    return made


async def test_a_version_is_stored_once_with_all_its_files_and_says_so(
    registry: PromptRegistry,
) -> None:
    files = {"character.yaml": b"id: x", "templates/\u00e9.yaml": b"\x00\xff", "empty": b""}
    assert await registry.publish("ada", A, files, author=" ana ", message="first") is True
    assert await registry.publish("ada", A, {"x": b"y"}, author="bo", message="again") is False
    assert await registry.files("ada", A) == files
    (kept,) = await registry.versions("ada")
    assert (kept.author, kept.message) == ("ana", "first")
    assert await registry.names() == ("ada", "mara")


async def test_publishing_at_once_stores_one_version(registry: PromptRegistry) -> None:
    files = {"character.yaml": b"x"}
    new = await asyncio.gather(
        *(registry.publish("ada", A, files, author=str(n), message="m") for n in range(8))
    )
    assert sorted(new) == [False] * 7 + [True]
    assert await registry.files("ada", A) == files


async def test_what_is_written_is_never_changed_or_removed(
    registry: PromptRegistry, pool: Pool
) -> None:
    await registry.move("mara", "production", A, seen=None, **WHO)
    for statement in (
        "UPDATE appliance.prompt_versions SET message = 'x'",
        "DELETE FROM appliance.prompt_versions",
        "UPDATE appliance.prompt_files SET content = 'x'",
        "DELETE FROM appliance.prompt_files",
        "TRUNCATE appliance.prompt_files",
        "UPDATE appliance.prompt_moves SET author = 'x'",
        "DELETE FROM appliance.prompt_moves",
    ):
        with pytest.raises(asyncpg.RestrictViolationError, match="never changed or removed"):
            await pool.execute(statement)


async def test_a_label_moves_from_where_it_was_seen_and_its_history_is_kept(
    registry: PromptRegistry,
) -> None:
    await registry.move("mara", "canary", A, seen=None, author="ana", message="try")
    moved = await registry.move("mara", "canary", B, seen=A, author="bo", message="better")
    assert moved is not None
    assert (moved.from_version, moved.to_version) == (A, B)
    told = [
        (m.author, m.message, m.from_version, m.to_version) for m in await registry.moves("mara")
    ]
    assert told == [("bo", "better", A, B), ("ana", "try", None, A)]
    assert [(label.label, label.version) for label in await registry.labels("mara")] == [
        ("canary", B)
    ]


async def test_a_move_to_where_the_label_is_changes_nothing(registry: PromptRegistry) -> None:
    await registry.move("mara", "canary", A, seen=None, **WHO)
    assert await registry.move("mara", "canary", A, seen=A, **WHO) is None
    # As after a connection that was lost between the commit and its answer.
    await registry.move("mara", "canary", B, seen=A, **WHO)
    assert await registry.move("mara", "canary", B, seen=A, **WHO) is None
    assert len(await registry.moves("mara")) == 2


async def test_of_two_who_move_a_label_at_once_one_is_told(registry: PromptRegistry) -> None:
    await registry.move("mara", "canary", A, seen=None, **WHO)
    ended = await asyncio.gather(
        registry.move("mara", "canary", B, seen=A, **WHO),
        registry.move("mara", "canary", C, seen=A, **WHO),
        return_exceptions=True,
    )
    (lost,) = [end for end in ended if isinstance(end, BaseException)]
    (won,) = [end for end in ended if not isinstance(end, BaseException)]
    assert isinstance(lost, Conflict)
    assert won is not None
    assert f"was at {A[:12]} and is at {won.to_version[:12]} now" in lost.message
    assert len(await registry.moves("mara")) == 2


async def test_of_two_who_make_a_label_at_once_one_is_told(registry: PromptRegistry) -> None:
    ended = await asyncio.gather(
        *(registry.move("mara", "canary", v, seen=None, **WHO) for v in (A, B)),
        return_exceptions=True,
    )
    (lost,) = [end for end in ended if isinstance(end, BaseException)]
    assert isinstance(lost, Conflict)
    assert "did not exist" in lost.message


async def test_a_protected_label_moves_only_when_it_is_confirmed(registry: PromptRegistry) -> None:
    await registry.move("mara", "production", A, seen=None, protect=True, **WHO)
    with pytest.raises(LabelProtected, match="label production of mara is protected"):
        await registry.move("mara", "production", B, seen=A, **WHO)
    with pytest.raises(LabelProtected):
        await registry.move("mara", "production", A, seen=A, protect=False, **WHO)
    moved = await registry.move("mara", "production", B, seen=A, confirmed=True, **WHO)
    assert moved is not None
    assert moved.protected
    await registry.move("mara", "production", B, seen=B, protect=False, confirmed=True, **WHO)
    await registry.move("mara", "production", C, seen=B, **WHO)
    assert [move.protected for move in await registry.moves("mara")] == [False, False, True, True]


async def test_a_reference_is_a_label_or_the_beginning_of_one_version(
    registry: PromptRegistry,
) -> None:
    await registry.move("mara", "production", B, seen=None, **WHO)
    assert await registry.resolve("mara", "production") == B
    assert await registry.resolve("mara", "bb33") == C
    assert await registry.resolve("mara", A) == A


async def test_a_reference_that_means_nothing_is_named(registry: PromptRegistry) -> None:
    await registry.move("mara", "production", A, seen=None, **WHO)
    cases: list[tuple[str, str, type[ApplianceError], str]] = [
        (
            "mara",
            "staging",
            NotFound,
            "mara has no label 'staging' (labels: production; its newest version is ",
        ),
        ("mara", "dead", NotFound, "no version of mara begins with 'dead'"),
        ("mara", "aa1", InvalidRequest, "'aa1' is shorter than 4 characters"),
        ("nobody", "production", NotFound, "no prompt 'nobody' (there are: mara)"),
        ("nobody", "dead", NotFound, "no prompt 'nobody' (there are: mara)"),
        ("mara", "a b", InvalidRequest, "label: 'a b' is not 1 to 64"),
        ("mara", "", InvalidRequest, "label: ''"),
    ]
    for name, reference, kind, said in cases:
        with pytest.raises(kind) as caught:
            await registry.resolve(name, reference)
        assert said in caught.value.message


async def test_a_beginning_that_several_versions_have_is_refused_with_them(
    registry: PromptRegistry,
) -> None:
    await registry.publish("mara", "aa11" + "f" * 60, {"a": b""}, **WHO)
    with pytest.raises(InvalidRequest, match=r"begin with 'aa11' \(aa110000, aa11ffff\)"):
        await registry.resolve("mara", "aa11")


async def test_who_and_why_are_always_said(registry: PromptRegistry) -> None:
    for fields, said in (
        ({"message": " \n"}, "message: is empty"),
        ({"message": "x" * 2001}, "message: at most 2000 characters, this one has 2001"),
        ({"author": ""}, "author: is empty"),
        ({"author": "x" * 201}, "author: at most 200 characters"),
    ):
        given = {**WHO, **fields}
        for attempt in (
            registry.publish("mara", "cc" * 32, {"a": b""}, **given),
            registry.move("mara", "canary", A, seen=None, **given),
        ):
            with pytest.raises(InvalidRequest, match=said):
                await attempt
    assert await registry.moves("mara") == ()


async def test_an_unsafe_label_is_refused(registry: PromptRegistry) -> None:
    for label in ("Prod", "cafe", "dead01", "1st", "a" * 65, "a/b", "a\n", ""):
        with pytest.raises(InvalidRequest, match="label: "):
            await registry.move("mara", label, A, seen=None, **WHO)


async def test_a_label_never_stands_at_a_version_that_is_not_there(
    registry: PromptRegistry,
) -> None:
    with pytest.raises(NotFound, match="no version of mara begins with"):
        await registry.move("mara", "canary", "cc" * 32, seen=None, **WHO)
    with pytest.raises(NotFound, match="no prompt 'nobody'"):
        await registry.move("nobody", "canary", A, seen=None, **WHO)


async def test_a_conversation_holds_the_version_of_its_first_turn(
    ledger: Ledger,
) -> None:
    opened = await new_conversation(ledger)
    assert opened.prompt_version is None
    first = await ledger.append_turn(turn(opened, None, "q", "a", prompt_version=A))
    await ledger.append_turn(turn(opened, first.assistant.message_id, "q", "a", prompt_version=B))
    key = (opened.tenant, opened.conversation_id)
    assert (await ledger.get(*key)).prompt_version == A
    for version in (B, C, B):
        assert (
            await ledger.change(*key, ConversationChange(prompt_version=version))
        ).prompt_version == version
    assert (await ledger.past(*key)).versions == (A, B, C)
    await ledger.append_turn(turn(opened, None, "q", "a", prompt_version=A))
    assert (await ledger.get(*key)).prompt_version == B


async def test_live_chats_are_counted_by_version_with_the_tokens_of_their_heads(
    ledger: Ledger, pool: Pool
) -> None:
    for tenant, character, version in (
        ("anna", "mara", A),
        ("ben", "mara", A),
        ("ben", "mara", None),
        ("ben", None, A),
        ("ben", "other", A),
    ):
        opened = await new_conversation(ledger, tenant, character=character)
        await ledger.append_turn(turn(opened, None, "q", "a", prompt_version=version))
    await new_conversation(ledger, "ben", character="mara")  # nothing was said in it
    # The members of a group have versions of their own, which no label moves.
    members = tuple(Member(id=name, version=A) for name in ("mara", "other"))
    group = await new_conversation(ledger, "group", character="mara", scene=Scene(members=members))
    await ledger.append_turn(turn(group, None, "q", "a", prompt_version=A))
    old = await new_conversation(ledger, "old", character="mara")
    await talk(ledger, old, 1)
    await pool.execute(
        "UPDATE appliance.conversations SET updated_at = now() - interval '9 days' "
        "WHERE tenant = 'old'"
    )
    since = datetime.now(UTC) - timedelta(days=7)
    found = await ledger.live_chats("mara", since, default="assistant")
    # 20 tokens of prompt and 2 of reply each.
    assert [(f.version, f.conversations, f.tokens) for f in found] == [(A, 2, 44), (None, 1, 22)]
    assert [
        f.conversations for f in await ledger.live_chats("assistant", since, default="assistant")
    ] == [1]
    newest = await ledger.newest_of_character("mara", limit=2, default="assistant")
    assert [conversation.tenant for conversation in newest] == ["ben", "ben"]
    for or_none_yet, held in ((False, [A, A]), (True, [None, A, A])):
        live = await ledger.live_of_version(
            "mara", since, version=A, or_none_yet=or_none_yet, limit=9, default="assistant"
        )
        assert [conversation.prompt_version for conversation in live] == held
    assert [await ledger.live_groups("mara", since, version=version) for version in (A, B)] == [
        1,
        0,
    ]
    assert await ledger.live_groups("nobody", since, version=A) == 0


async def test_a_database_that_is_away_is_told(pool: Pool) -> None:
    await pool.close()
    with pytest.raises(StorageUnavailable):
        await PromptRegistry(pool).labelled("production")


@dataclass(slots=True)
class Model:
    """The registry as dictionaries: what every operation should do."""

    versions: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in NAMES})
    labels: dict[tuple[str, str], tuple[str, bool]] = field(default_factory=dict)
    moves: list[tuple[str, str, str | None, str]] = field(default_factory=list)

    def move(
        self,
        name: str,
        label: str,
        version: str,
        seen: str | None,
        protect: bool | None,
        sure: bool,
    ) -> str:
        if not self.versions[name]:
            return "NotFound"
        if version not in self.versions[name]:
            return "NotFound"
        if seen == version and protect is None:
            return "there"
        at = self.labels.get((name, label))
        protected = at is not None and at[1]
        if (None if at is None else at[0]) == seen and (sure or not protected):
            self.labels[name, label] = (version, protected if protect is None else protect)
            self.moves.append((name, label, seen, version))
            return "moved"
        if at is None:
            return "Conflict"
        if at[0] == version and protect in (None, at[1]):
            return "there"
        return "LabelProtected" if at[0] == seen else "Conflict"

    def resolve(self, name: str, prefix: str) -> str:
        found = [version for version in self.versions[name] if version.startswith(prefix)]
        return found[0] if len(found) == 1 else "InvalidRequest" if found else "NotFound"


async def test_random_deeds_leave_what_a_plain_model_of_the_registry_says(pool: Pool) -> None:
    draw = random.Random(7)
    registry, model = PromptRegistry(pool), Model()
    pool_of_versions = [f"{n % 3:04x}{n:060x}" for n in range(9)]
    for _ in range(250):
        name, version = draw.choice(NAMES), draw.choice(pool_of_versions)
        deed = draw.random()
        if deed < 0.15:
            is_new = await registry.publish(name, version, {"a": version.encode()}, **WHO)
            assert is_new == (version not in model.versions[name])
            if is_new:
                model.versions[name].append(version)
            continue
        try:
            if deed < 0.3:
                prefix = version[: draw.choice((4, 64))]
                told, wanted = await registry.resolve(name, prefix), model.resolve(name, prefix)
            else:
                label = draw.choice(("production", "canary"))
                at = model.labels.get((name, label))
                here = None if at is None else at[0]
                seen = here if draw.random() < 0.7 else draw.choice((None, *pool_of_versions))
                protect, sure = draw.choice((None, None, True, False)), draw.random() < 0.5
                wanted = model.move(name, label, version, seen, protect, sure)
                moved = await registry.move(
                    name, label, version, seen=seen, protect=protect, confirmed=sure, **WHO
                )
                told = "there" if moved is None else "moved"
        except ApplianceError as error:
            told = type(error).__name__
            if deed < 0.3:
                wanted = model.resolve(name, prefix)
        assert told == wanted
    for name in NAMES:
        stands = {(at.label, at.version, at.protected) for at in await registry.labels(name)}
        own = {key[1]: at for key, at in model.labels.items() if key[0] == name}
        assert stands == {(label, *at) for label, at in own.items()}
        moves = [
            (m.name, m.label, m.from_version, m.to_version) for m in await registry.moves(name)
        ]
        assert moves[::-1] == [move for move in model.moves if move[0] == name]
