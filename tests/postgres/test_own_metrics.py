"""Whatever an operator's query does, is told with its file and column: never a traceback, or nothing."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from appliance.errors import InvalidRequest
from appliance.experiment import columns
from appliance.experiment.measuring import NobodyYet, measure, measure_history
from appliance.experiment.metric_files import REPLIES, Metrics, load_metrics
from appliance.store.experiments import Experiments
from appliance.store.pool import Pool, acquired
from tests.postgres.test_measuring import an_experiment, store

SUM = "- {name: own, title: Own, unit: x, direction: up, numerator: own.x, group: quality}"
RATIO = SUM.replace("own.x", "own.x, denominator: own.y")
TIMES = SUM.replace("own.x", "own, quantile: 0.5")
PEOPLE = "FROM appliance.experiment_people($1::text)"
WIDE = ", ".join(f"1 AS c{number}" for number in range(1_700))

FAULTS = {
    "a person twice": (
        SUM,
        f"SELECT person, 1 AS x {PEOPLE} CROSS JOIN generate_series(1, 3)",
        r"own\.sql: 3 rows are of person 0: GROUP BY person",
    ),
    "an unknown person": (
        SUM,
        f"SELECT person + 7 AS person, 1 AS x {PEOPLE}",
        r"own\.sql: a value of 'person' is [78], and .* has 0 to 1",
    ),
    "a person below none": (SUM, f"SELECT -1 AS person, 1 AS x {PEOPLE}", "'person' is -1"),
    "half a person": (SUM, f"SELECT 0.5::float8 AS person, 1 AS x {PEOPLE}", "'person' is 0.5"),
    "no person": (SUM, f"SELECT 1 AS x {PEOPLE}", r"own\.sql: has no column 'person'"),
    "a null": (
        SUM,
        f"SELECT person, person AS w, nullif(person, 1) AS x {PEOPLE}",
        r"own\.sql: a value of 'x' is null; use coalesce",
    ),
    "not a number": (SUM, f"SELECT person, 'NaN'::float8 AS x {PEOPLE}", r"own\.sql: .*'x' is nan"),
    "infinity": (SUM, f"SELECT person, '-inf'::float8 AS x {PEOPLE}", r"own\.sql: .*'x' is -inf"),
    "too large": (SUM, f"SELECT person, 1e300::float8 AS x {PEOPLE}", r"'x' is 1e\+300.*1e\+15"),
    "text": (SUM, f"SELECT person, 'a' AS x {PEOPLE}", r"own\.sql: column 'x' is of type text"),
    "numeric": (
        SUM,
        f"SELECT person, 1.5 AS x {PEOPLE}",
        r"column 'x' is of type numeric: cast it",
    ),
    "another column": (SUM, f"SELECT person, 1 AS y {PEOPLE}", r"own\.sql has no column 'x'"),
    "a column twice": (SUM, f"SELECT person, 1 AS x, 2 AS x {PEOPLE}", "2 columns are named 'x'"),
    "many columns": (
        SUM,
        f"SELECT person, {WIDE[: WIDE.index('1 AS c300')]}1 AS x {PEOPLE}",
        r"own\.sql: 302 columns, at most 200",
    ),
    "more than PostgreSQL takes": (SUM, f"SELECT person, {WIDE} {PEOPLE}", r"own\.sql: .*1664"),
    "a negative share": (
        RATIO,
        f"SELECT person, 1 AS x, person - 1 AS y {PEOPLE}",
        r"own\.sql: a value of 'y' is -1: own is a share of it",
    ),
    "no step": (TIMES, f"SELECT person, 1 AS count {PEOPLE}", r"own\.sql has no column 'step'"),
    "no count": (TIMES, f"SELECT person, 1 AS step {PEOPLE}", r"own\.sql has no column 'count'"),
    "a negative count": (
        TIMES,
        f"SELECT person, 1 AS step, -1 AS count {PEOPLE}",
        r"own\.sql: a value of 'count' is -1: a whole number of 0 or more",
    ),
    "a step out of time": (
        TIMES,
        f"SELECT person, 90000 AS step, 1 AS count {PEOPLE}",
        r"own\.sql: a value of 'step' is 90000: a whole number of 0 or more, at most 3000",
    ),
    "an error of SQL": (
        SUM,
        f"SELEKT person {PEOPLE}",
        r'own\.sql: syntax error at or near "SELEKT"',
    ),
    "no such table": (SUM, "SELECT x FROM love WHERE '' = $1::text", r'own\.sql: relation "love"'),
    "a division by zero": (SUM, f"SELECT person, 1 / (person - person) AS x {PEOPLE}", "by zero"),
    "many rows for one": (
        SUM,
        f"SELECT person, (SELECT n FROM generate_series(1, 2) AS n) AS x {PEOPLE}",
        r"own\.sql: more than one row returned",
    ),
    "two statements": (
        SUM,
        f"SELECT person {PEOPLE}; DROP TABLE appliance.messages",
        r"own\.sql: ",
    ),
    "no SELECT": (SUM, "SET jit = on", r"own\.sql: is no SELECT"),
    "no parameter": (SUM, "SELECT 0 AS person, 1 AS x", r"\$1::text, .* it has none"),
    "two parameters": (
        SUM,
        f"SELECT $2::integer AS x, person {PEOPLE}",
        "it has .1 of text, .2 of int4",
    ),
    "it writes": (
        SUM,
        "WITH gone AS (DELETE FROM appliance.messages RETURNING 1) "
        f"SELECT person, 1 AS x {PEOPLE} WHERE EXISTS (SELECT FROM gone)",
        r"own\.sql: (cannot execute|DML|COPY query).*",
    ),
    "it writes by a function": (
        SUM,
        f"SELECT person, lo_create(0)::bigint AS x {PEOPLE}",
        r"own\.sql: cannot execute lo_create\(\) in a read-only transaction",
    ),
    "it says too much": (
        SUM,
        f"SELECT person, n AS x {PEOPLE} CROSS JOIN generate_series(1, 1000000) AS n",
        r"own\.sql: answers with more than 1 MiB: group by person",
    ),
}


def own(folder: Path, declared: str, sql: str) -> Metrics:
    (folder / "metrics.yaml").write_text(declared)
    (folder / "own.sql").write_text(sql)
    found = load_metrics(folder)
    return Metrics(
        by_name={"own": found.by_name["own"]},
        sql={name: found.sql[name] for name in (REPLIES, "own")},
    )


@pytest.fixture
async def two_users(pool: Pool) -> Pool:
    """Where an experiment has a user in either arm."""
    await store(pool, [], [], {})
    for user, arm in (("ana", "control"), ("mo", "other")):
        await pool.execute(
            "INSERT INTO appliance.conversations (tenant, conversation_id, title, character_id, user_id, "
            "experiment, arm, exposed_at) VALUES ('acme', $1, '', 'ada', $2, 'ships', $3, now())",
            uuid4(),
            user,
            arm,
        )
    return pool


async def test_what_an_own_query_does_wrong_is_told_with_its_file(
    two_users: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "BYTES_MAX", 1 << 20)
    experiment = await Experiments(two_users).get("ships")
    for name, (declared, sql, told) in FAULTS.items():
        metrics = own(tmp_path, declared, sql)
        with pytest.raises(InvalidRequest, match=told) as fault:
            await measure(two_users, experiment, metrics)
        assert not isinstance(fault.value, NobodyYet), name
        assert "own" in fault.value.message, name
    # The connection is as good as before, and nothing was written.
    for tail in ("", ";", "\n-- a comment, to the end", ";\n;\n"):
        metrics = own(tmp_path, SUM, f"SELECT person, -2 AS x {PEOPLE}{tail}")
        measured = await measure(two_users, experiment, metrics)
        mine = next(one for one in measured.sums if one.metric.name == "own")
        assert mine.numerator.tolist() == [-2.0, -2.0], "what is below zero is a figure like others"


async def test_a_query_that_never_ends_is_ended(two_users: Pool) -> None:
    sleeps = f"SELECT person, length(pg_sleep(3600)::text) AS x {PEOPLE}"
    async with acquired(two_users) as connection, connection.transaction():
        with pytest.raises(
            InvalidRequest, match=r"own\.sql: was not done in the 0\.2 s that were left"
        ):
            await columns.read_columns(connection, "own.sql", sleeps, "ships", timeout_s=0.2)


async def test_a_plan_lets_nobody_write_either(two_users: Pool, tmp_path: Path) -> None:
    _, sql, told = FAULTS["it writes by a function"]
    with pytest.raises(InvalidRequest, match=told):
        await measure_history(two_users, an_experiment({}), own(tmp_path, SUM, sql))
