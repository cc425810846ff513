"""What the chat layer keeps in memory is bounded by bytes, whatever strangers have written."""

from __future__ import annotations

from uuid import UUID

import pytest

from appliance.chat import catalog as catalog_module
from appliance.chat.catalog import Catalog
from appliance.chat.lore import Recall
from appliance.chat.tips import KnownTurn, Tips
from appliance.prompt.characters import Characters, CharacterVersion
from appliance.prompt.continuation import Tip
from appliance.prompt.lore.activation import Before
from appliance.store.pool import Pool
from appliance.store.prompt_registry import PromptRegistry
from appliance.store.records import Conversation, Member, Persona, Scene
from appliance.wire.frames import Node
from tests.characters import bundle_of


def known(number: int, *, entries: int = 0) -> KnownTurn:
    digests = frozenset(f"{number}-{entry}" for entry in range(entries))
    return KnownTurn(
        reply_id=UUID(int=number),
        place_id=None,
        node=Node(instance="i", number=number, tokens=1),
        tip=Tip(tokens=1, stretches=((b"t", 1),), closed=0, window_tokens=1, messages_dropped=0),
        recall=Recall(before=Before(active=digests, matched=digests)),
        prompt_version="v",
        scene_digest=Scene(persona=Persona(text="x" * 16_000)).digest,
    )


def test_conversations_are_forgotten_by_number_and_by_bytes() -> None:
    tips = Tips(tips_max=3)
    for number in range(5):
        tips.put(("anna", UUID(int=number)), known(number))
    assert len(tips) == 3
    assert tips.get(("anna", UUID(int=4)), UUID(int=4)) is not None
    assert tips.get(("anna", UUID(int=1)), UUID(int=1)) is None
    heavy = known(0, entries=1_000).weight
    tips = Tips(bytes_max=3 * heavy)
    for number in range(50):
        # The same conversation again takes the place of the turn before.
        tips.put(("anna", UUID(int=number // 2)), known(number, entries=1_000))
    assert len(tips) == 3
    for number in range(22, 25):
        tips.put(("anna", UUID(int=number)), None)
    assert len(tips) == 0
    tips.put(("anna", UUID(int=1)), known(1, entries=1_000))
    assert len(tips) == 1


def test_a_scene_takes_as_much_as_its_digest_and_tells_another_one() -> None:
    assert known(1).weight < 2_000
    scene = Scene(persona=Persona(text="x" * 16_000))
    held = Conversation.__new__(Conversation)
    for given, same in ((scene, True), (Scene(), False), (Scene(pinned=("a",)), False)):
        object.__setattr__(held, "prompt_version", "v")
        object.__setattr__(held, "scene", given)
        assert known(1).is_of(held) == same


def version(name: str, chars: int) -> CharacterVersion:
    return CharacterVersion.of(bundle_of(name, system="x" * chars))


async def test_versions_that_conversations_hold_are_kept_by_their_bytes(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_module, "VERSIONS_BYTES_MAX", 10_000)
    current = version("assistant", 10)
    catalog = Catalog(PromptRegistry(pool), current=Characters.of([current]))
    for number in range(20):
        catalog._keep(version(f"v{number}", 3_000))
    assert [name for name, _ in catalog._others] == ["v17", "v18", "v19"]
    catalog._keep(version("v17", 3_000))
    catalog._keep(version("huge", 50_000))
    assert [name for name, _ in catalog._others] == ["huge"], "the one in use is kept"
    catalog._keep(version("v1", 100))
    assert [name for name, _ in catalog._others] == ["v1"]
    assert catalog._others_bytes == catalog._others["v1", version("v1", 100).version].text_bytes


async def test_groups_are_kept_by_the_versions_of_their_members(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_module, "GROUPS_MAX", 2)
    versions = [version(f"v{number}", 10) for number in range(4)]
    catalog = Catalog(PromptRegistry(pool), current=Characters.of(versions))
    members = [Member(id=one.character.id, version=one.version) for one in versions]
    first = await catalog.group((members[0], members[1]))
    assert await catalog.group((members[0], members[1])) is first
    assert await catalog.group((members[1], members[0])) is not first
    await catalog.group((members[2], members[3]))
    assert await catalog.group((members[0], members[1])) is not first
