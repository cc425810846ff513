"""A report over many messages in the embedded cluster, and the price of one assignment.

Users of a past and of two arms; conversations of ten turns with the texts and token ids of `turns.py`, a
quarter of them from before the experiment. The queries read whole tables, so rows lie as they were
written and have been vacuumed once, as autovacuum would. Arguments: messages (default 10,000,000; a
million of them takes 0.8 GB) and the folder that the cluster lies in (default: the working directory).
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from appliance.config import DatabaseConfig
from appliance.dbops.cluster.binaries import find_binaries
from appliance.dbops.cluster.cluster import Cluster
from appliance.experiment.analysis import analyse
from appliance.experiment.assignment import Assigner
from appliance.experiment.findings import Plan
from appliance.experiment.measuring import measure
from appliance.experiment.metric_files import load_metrics
from appliance.store.experiment_records import Arm, Experiment, Options
from appliance.store.experiments import Experiments
from appliance.store.migrate import migrate
from appliance.store.pool import Pool, connect

MESSAGES = 10_000_000
MESSAGES_A_CONVERSATION = 20
CONVERSATIONS_A_USER = 10
BATCH_CONVERSATIONS = 25_000
REPORTS = 3
ASSIGNMENTS = 200_000
TIMEOUT_MS = 3_600_000

CONVERSATIONS = """
INSERT INTO appliance.conversations (tenant, conversation_id, title, character_id, user_id, experiment,
                                     arm, created_at, updated_at, exposed_at, prompt_version)
SELECT 'bench', lpad(to_hex(i), 32, '0')::uuid, '', 'ada', 'user ' || u, e,
       CASE WHEN e IS NOT NULL THEN a END, at, at, CASE WHEN e IS NOT NULL THEN at END, repeat(left(a,
       1), 64)
FROM (
    SELECT i, i % $3 AS u, CASE WHEN i / $3 % 4 > 0 THEN 'bench' END AS e,
           CASE i % $3 % 2 WHEN 0 THEN 'a' ELSE 'b' END AS a,
           now() - interval '1 day'
               * CASE WHEN i / $3 % 4 > 0 THEN 9 * random() ELSE 11 + 10 * random() END AS at
    FROM generate_series($1::bigint, $2::bigint - 1) AS i
) AS drawn
"""

TURNS = """
INSERT INTO appliance.messages (tenant, conversation_id, message_id, parent_id, turn_key, depth, role,
                                text, token_ids, tokenizer, created_at, prompt_version, finish_reason,
                                prompt_tokens, prefix_hit_tokens, ttft_ms, reply_ms)
SELECT c.tenant, c.conversation_id, gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), n,
       CASE WHEN n % 2 = 0 THEN 'user' ELSE 'assistant' END, repeat('said and heard. ', 11),
       decode(repeat('00000001', 40), 'hex'), 'bench', c.created_at + n * interval '20 seconds',
       CASE WHEN n % 2 = 1 THEN c.prompt_version END,
       CASE WHEN n % 2 = 1 THEN 'stop' END, CASE WHEN n % 2 = 1 THEN 800 + 90 * n END,
       CASE WHEN n % 2 = 1 THEN (700 + 60 * random())::integer END,
       CASE WHEN n % 2 = 1 THEN (100 + 900 * random() ^ 3)::integer END,
       CASE WHEN n % 2 = 1 THEN (900 + 9000 * random())::integer END
FROM appliance.conversations AS c
CROSS JOIN generate_series(0, $3::integer - 1) AS n
WHERE c.tenant = 'bench' AND c.conversation_id >= lpad(to_hex($1::bigint), 32, '0')::uuid
  AND c.conversation_id < lpad(to_hex($2::bigint), 32, '0')::uuid
"""


def an_experiment() -> Experiment:
    """Two equal arms."""
    return Experiment(
        name="bench",
        character="ada",
        hypothesis="h",
        layer="ada",
        salt="bench",
        range_start=0.0,
        range_end=1.0,
        coverage=0.9999,
        excludes=(),
        overrides={},
        options=Options(primary=("messages_sent",)),
        arms=(
            Arm(name="a", share=0.5, version="a" * 64),
            Arm(name="b", share=0.5, version="b" * 64),
        ),
        state="draft",
        created_at=datetime.now(UTC),
    )


def assignment_us() -> float:
    """Microseconds of the cheapest of five runs, for users who are in: two hashes each."""
    assigner = Assigner.of(an_experiment())
    users = [f"user-{number}" for number in range(ASSIGNMENTS)]
    best = float("inf")
    for _ in range(5):
        begun = time.thread_time()
        for user in users:
            assigner.arm("bench", user)
        best = min(best, time.thread_time() - begun)
    return best / ASSIGNMENTS * 1e6


async def fill(pool: Pool, messages: int) -> None:
    """The experiment, its users and what they said."""
    for version in ("a" * 64, "b" * 64):
        await pool.execute(
            "INSERT INTO appliance.prompt_versions (name, version, author, message) "
            "VALUES ('ada', $1, 'bench', 'bench')",
            version,
        )
    store = Experiments(pool)
    await store.create(an_experiment(), author="bench", message="bench")
    await store.start("bench", author="bench", message="bench", check=lambda others: None)
    await pool.execute("UPDATE appliance.experiments SET started_at = now() - interval '10 days'")
    conversations = messages // MESSAGES_A_CONVERSATION
    users = max(1, conversations // CONVERSATIONS_A_USER)
    for start in range(0, conversations, BATCH_CONVERSATIONS):
        end = min(conversations, start + BATCH_CONVERSATIONS)
        await pool.execute(CONVERSATIONS, start, end, users)
        await pool.execute(TURNS, start, end, MESSAGES_A_CONVERSATION)
    await pool.execute("VACUUM (ANALYZE) appliance.conversations, appliance.messages")


async def run(url: str, messages: int) -> None:
    """Measure and print."""
    print(f"an assignment: {assignment_us():.2f} us")
    pool = await connect(url, DatabaseConfig(statement_timeout_ms=TIMEOUT_MS))
    await migrate(pool)
    begun = time.perf_counter()
    await fill(pool, messages)
    size = await pool.fetchval("SELECT pg_size_pretty(pg_database_size(current_database()))")
    print(f"{messages:,} messages in {time.perf_counter() - begun:.0f} s, {size}")
    experiment, metrics = await Experiments(pool).get("bench"), load_metrics()
    for _ in range(REPORTS):
        begun = time.perf_counter()
        measured = await measure(pool, experiment, metrics)
        read = time.perf_counter() - begun
        analysis = analyse(measured, Plan(deciding=("messages_sent",), hours=240))
        judged = time.perf_counter() - begun - read
        print(
            f"a report of {analysis.users:,} users: {read + judged:.1f} s (queries {read:.1f}, "
            f"statistics {judged:.1f})"
        )
    await pool.close()


async def start(cluster: Cluster) -> None:
    """A new cluster, running."""
    await cluster.init(lambda _: None)
    await cluster.start(lambda _: None)


def main() -> None:
    """Measure in a cluster of its own."""
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES
    place = Path(sys.argv[2]) if len(sys.argv) > 2 else Path.cwd()
    with tempfile.TemporaryDirectory(prefix="bench-report-", dir=place) as name:
        Path(name).chmod(0o755)
        cluster = Cluster(Path(name) / "postgres", find_binaries())
        with asyncio.Runner() as runner:
            runner.run(start(cluster))
            try:
                runner.run(run(cluster.url(), messages))
            finally:
                runner.run(cluster.stop())


if __name__ == "__main__":
    main()
