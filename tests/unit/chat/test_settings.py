"""A version settles how replies are chosen and prompts are cut; a request that names a value has that
one."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.chat.catalog import Catalog
from appliance.chat.conversations import Conversations
from appliance.chat.experimenting import Experimenting
from appliance.chat.params import GenerationParams
from appliance.chat.trials import Trials
from appliance.chat.turn import Turns
from appliance.errors import InvalidBundle
from appliance.experiment.definition import ArmDefinition, Definition
from appliance.prompt.bundle import CHARACTER_FILE, Bundle
from appliance.prompt.characters import Characters, CharacterVersion
from appliance.store.experiments import Experiments
from appliance.store.pool import Pool
from appliance.wire.frames import Sampling
from tests.characters import characters_of
from tests.scripted_engine import ScriptedEngine
from tests.unit.chat.conftest import Vocabulary
from tests.unit.chat.driver import TENANT, read, send

WHO: dict[str, Any] = {"author": "ana", "message": "let us see"}
SETTLED = "sampling: {temperature: 0.5, top_k: 20}\ntruncation: {step_tokens: 64}\n"


def bundle(settings: str, **files: bytes) -> Bundle:
    text = f"id: assistant\nname: Assistant\nsystem: Be brief.\n{settings}"
    return Bundle(name="assistant", files={CHARACTER_FILE: text.encode(), **files})


@pytest.fixture
def characters() -> Characters:
    return characters_of(bundle(SETTLED))


async def test_replies_are_chosen_and_prompts_cut_as_the_version_says(
    turns: Turns,
    conversations: Conversations,
    characters: Characters,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
) -> None:
    engine.script = vocabulary.script("one", leaves_node=True)
    opened = await conversations.open(tenant=TENANT)
    await read(send(turns, opened.conversation_id, "first"))
    assert engine.generated[-1].sampling == Sampling(temperature=0.5, top_k=20)
    named = GenerationParams(sampling=Sampling(temperature=0.9), named=frozenset({"temperature"}))
    await read(send(turns, opened.conversation_id, "second", params=named))
    assert engine.generated[-1].sampling == Sampling(temperature=0.9, top_k=20)
    cast = characters.get(None)
    assert turns.planner.builder.window(cast).step == 64


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("sampling: {temperature: 3}", "sampling.temperature"),
        ("sampling: {heat: 1}", "heat"),
        ("truncation: {step_tokens: -1}", "truncation.step_tokens"),
        ("truncation: {step_tokens: many}", "truncation.step_tokens"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_its_name(settings: str, told: str) -> None:
    with pytest.raises(InvalidBundle, match=told):
        CharacterVersion.of(bundle(settings))


@pytest.mark.parametrize(
    ("other", "is_late"),
    [
        (bundle(SETTLED.replace("64", "128")), True),
        (bundle(SETTLED.replace("0.5", "0.6")), False),
        (bundle(SETTLED.replace("64", "128").replace("0.5", "0.6")), False),
        (bundle(SETTLED.replace("64", "128"), other=b"any file"), False),
        (bundle(SETTLED), False),
    ],
)
async def test_arms_that_only_cut_otherwise_expose_nobody_before_the_first_cut(
    pool: Pool, turns: Turns, catalog: Catalog, other: Bundle, is_late: bool
) -> None:
    versions = []
    for made in (bundle(SETTLED), other):
        await catalog.registry.publish("assistant", made.version, made.files, **WHO)
        versions.append(made.version)
    deeds = Experimenting(
        experiments=Experiments(pool), trials=Trials(), catalog=catalog, prompts=turns.prompts
    )
    arms = [ArmDefinition(name=f"arm-{n}", version=v) for n, v in enumerate(versions)]
    definition = Definition(name="cut", hypothesis="h", arms=arms, primary=["messages_sent"])
    experiment, _ = await deeds.create(definition, **WHO)
    assert experiment.options.differs_when_cut == is_late
    await deeds.start("cut", coverage=None, **WHO)
    assigned = deeds.trials.of("assistant", TENANT, "mo")
    assert assigned is not None
    assert not assigned.exposes, "there is no greeting"
    for is_cut in (False, True):
        exposes = deeds.trials.exposes(assigned.trial, version=assigned.version, is_cut=is_cut)
        assert exposes == (is_cut or not is_late)
