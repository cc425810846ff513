"""A real cluster that has run out of transaction IDs: chats go on, and their turns come in afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from appliance.dbops.cluster.binaries import find_binaries
from appliance.dbops.cluster.cluster import Cluster
from appliance.errors import StorageUnavailable
from appliance.experiment.measuring import NobodyYet, measure
from appliance.experiment.metric_files import load_metrics
from appliance.store.experiments import Experiments
from appliance.store.ledger import Ledger
from appliance.store.migrate import load_migrations, migrate
from appliance.store.pool import Pool
from appliance.store.records import Trial
from appliance.store.write_faults import Fault, fault_of, is_out_of_ids
from tests.postgres.journalled import Chat, keeping
from tests.postgres.test_experiment_deeds import WHO, deeds, published
from tests.postgres.turns import new_conversation
from tests.postgres.xid_stop import freeze_all, run_out_of_ids
from tests.postgres_fixtures import TEMPLATE, start_new

pytestmark = pytest.mark.slow


async def refuse_deeds(pool: Pool) -> None:
    """Nothing is done with an experiment, and what it has shown so far can be asked."""
    store = Experiments(pool)
    before = (await store.running(), await store.events("ships"))
    assert [event.kind for event in before[1]] == ["created", "started"]
    for kind in ("ramped", "paused", "stopped", "shipped"):
        with pytest.raises(StorageUnavailable, match=r"nothing was saved: ProgramLimitExceeded"):
            await deeds(store, pool)[kind](**WHO)
    assert (await store.running(), await store.events("ships")) == before
    with pytest.raises(NobodyYet):
        await measure(pool, before[0][0], load_metrics())


@pytest.fixture
async def own(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("own") / "postgres", find_binaries())
    await start_new(cluster)
    yield cluster
    await cluster.stop()


async def test_in_the_stop_chats_go_on_and_every_turn_of_it_is_stored_when_it_ends(
    own: Cluster, tmp_path: Path
) -> None:
    url, folder = own.url(TEMPLATE), tmp_path / "journal"
    async with keeping(url, folder) as kept:
        known, cold = await Chat.begin(kept.ledger), await Chat.begin(kept.ledger)
        for chat in (known, cold):
            await chat.say()
        store = await published(kept.pool)
        for kind in ("created", "started"):
            await deeds(store, kept.pool)[kind](**WHO)
        await run_out_of_ids(own)
        clock = asyncio.get_running_loop().time
        started = clock()
        await known.say()
        assert clock() - started < 1, "a stop is known by its error, and not waited for"
        assert kept.gate.closed_for == "ProgramLimitExceededError (54000)"
        new = await Chat.begin(kept.ledger)
        for _ in range(3):
            await new.say()
            await known.say()
        assert kept.waiting == 8
        trial = Trial(experiment="ships", arm="ships")
        greeted = await new_conversation(kept.ledger, user="mo", trial=trial, exposes=True)
        await refuse_deeds(kept.pool)
    # A server that starts in the stop finds its schema, its journal, and the chats it does not know.
    async with keeping(url, folder) as kept:
        assert await migrate(kept.pool) == len(load_migrations())
        for chat in (known, cold, new):
            chat.ledger = kept.ledger
            await chat.is_whole_in(kept.ledger)
            await chat.say()
        assert kept.waiting == 12
        with pytest.raises(asyncpg.ProgramLimitExceededError) as refused:
            await kept.pool.fetchval("SELECT pg_current_xact_id()")
        assert is_out_of_ids(refused.value)
        assert fault_of(refused.value) is Fault.DATABASE
        await freeze_all(own)
        await kept.drained(30)
        plain = Ledger(kept.pool)
        for chat in (known, cold, new):
            await chat.is_whole_in(plain)
        await known.say()
        assert kept.waiting == 0
        seen = "SELECT exposed_at FROM appliance.conversations WHERE user_id = 'mo'"
        assert await kept.pool.fetchval(seen) == greeted.created_at, "when it was opened"
        assert await deeds(Experiments(kept.pool), kept.pool)["paused"](**WHO) is True
