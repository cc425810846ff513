"""The alert rules of the whole appliance, the database's too: they ask for what a box's /metrics tells,
each fires when it should, and none on a healthy box."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from appliance.cli.status import alert_rules
from appliance.config import ServerConfig
from appliance.dbops.monitoring.backups import Backups
from appliance.dbops.monitoring.metrics import exposition
from appliance.model.decoder import Decoder
from appliance.task_notes import note_database, note_end
from appliance.wire.client import EngineClient
from tests.engine_fixtures import decoder, engine_in_thread, model_directory
from tests.unit.dbops.clusters import snapshot
from tests.unit.server.door import Door

__all__ = ["decoder", "model_directory"]

RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(alert_rules())["groups"] for rule in group["rules"]
]
MINUTES = 180
REQUESTS = 'appliance_requests_total{{method="POST",route="/",status="{}"}}'
TOKENS = 'appliance_tokens_total{{kind="{}"}}'
HEALTHY = {
    "appliance_streams_running": "3",
    "appliance_engine_up": "1",
    "appliance_engine_start_time_seconds": "1700000000",
    "appliance_start_time_seconds": "1700000000",
    'appliance_ttft_seconds_bucket{le="1.0"}': "0+60",
    'appliance_ttft_seconds_bucket{le="60.0"}': "0+60",
    'appliance_ttft_seconds_bucket{le="+Inf"}': "0+60",
    REQUESTS.format(200): "0+1000",
    REQUESTS.format(500): "0+1",
    REQUESTS.format(503): "0+10",
    "appliance_engine_oldest_wait_s_interactive": "1",
    TOKENS.format("prompt_cached"): "0+95",
    TOKENS.format("prompt_computed"): "0+5",
    'appliance_index_coverage{role="user"}': "1",
    "appliance_engine_audit_alarm": "0",
    "appliance_engine_tier_disk_off": "0",
    'appliance_database_writes{state="closed"}': "0",
    "appliance_journal_oldest_seconds": "0",
    "appliance_journal_bytes": "100",
    "appliance_journal_bytes_max": "1000",
    'appliance_task_failed{task="db-backup"}': "0",
    'appliance_task_failed{task="cache-audit"}': "0",
    'appliance_task_failed{task="db-status"}': "1",
    'appliance_task_success_timestamp_seconds{task="cache-audit"}': "0",
    "appliance_disk_free_bytes": "100000000000",
    "appliance_disk_bytes": "2000000000000",
    "appliance_db_up": "1",
    "appliance_db_read_timestamp_seconds": "0+60",
    "appliance_db_parts_missing": "0",
    "appliance_db_autovacuum_on": "1",
    'appliance_db_horizon_age{holder="logical_slot"}': "10",
    'appliance_db_stage{of="xids"}': "0",
    'appliance_db_xids_left{database="app"}': "2000000000",
    'appliance_db_xids_left{database="template0"}': "1000000000",
    "appliance_db_xids_total": "0+60000",
    "appliance_db_backup_timestamp_seconds": "0",
    "appliance_db_backup_free_bytes": "100000000000",
}
"""Values at the start, and what is added each minute. The clock begins at 0, as every timestamp."""

AGAIN = " ".join(f"{1_700_000_000 + 900 * n}x9 _x5" for n in range(MINUTES // 16 + 1))
"""A process that is there for ten minutes, and then away for five."""

SICK: dict[str, dict[str, str | None]] = {
    "ApplianceServerAway": {"appliance_streams_running": None},
    "ApplianceEngineAway": {"appliance_engine_up": "0"},
    "ApplianceEngineRestarts": {"appliance_engine_start_time_seconds": AGAIN},
    "ApplianceServerRestarts": {"appliance_start_time_seconds": AGAIN},
    "ApplianceFailures": {REQUESTS.format(500): "0+30"},
    "ApplianceRefusals": {REQUESTS.format(503): "0+100"},
    "ApplianceSlowFirstToken": {'appliance_ttft_seconds_bucket{le="1.0"}': "0+10"},
    "ApplianceQueueWaits": {"appliance_engine_oldest_wait_s_interactive": "90"},
    "ApplianceCacheMisses": {TOKENS.format("prompt_computed"): "0+95"},
    "ApplianceIndexCoverage": {'appliance_index_coverage{role="user"}': "0.5"},
    "ApplianceAuditFailed": {"appliance_engine_audit_alarm": "1"},
    "ApplianceDiskTierOff": {"appliance_engine_tier_disk_off": "1"},
    "ApplianceDatabaseTakesNoWrites": {'appliance_database_writes{state="closed"}': "1"},
    "ApplianceJournalWaits": {"appliance_journal_oldest_seconds": "1000"},
    "ApplianceJournalFills": {"appliance_journal_bytes": "600"},
    "ApplianceBackupFailed": {'appliance_task_failed{task="db-backup"}': "1"},
    "ApplianceTaskFailed": {'appliance_task_failed{task="cache-audit"}': "1"},
    "ApplianceCacheAuditOld": {
        'appliance_task_success_timestamp_seconds{task="cache-audit"}': "-260000"
    },
    "ApplianceDiskFills": {"appliance_disk_free_bytes": "10000000000"},
    "ApplianceDiskFull": {"appliance_disk_free_bytes": "1000000000"},
    "ApplianceDatabaseNotAsked": {"appliance_db_up": "0"},
    "ApplianceDatabasePartsMissing": {"appliance_db_parts_missing": "1"},
    "ApplianceDatabaseHorizonHeld": {'appliance_db_horizon_age{holder="logical_slot"}': "2e8"},
    "ApplianceDatabaseAutovacuumOff": {"appliance_db_autovacuum_on": "0"},
    "ApplianceDatabaseDaysLeft": {"appliance_db_xids_total": "0+1000000"},
    "ApplianceDatabaseLagging": {'appliance_db_stage{of="xids"}': "1"},
    "ApplianceDatabaseFailsafe": {'appliance_db_stage{of="xids"}': "2"},
    "ApplianceDatabaseWarnings": {'appliance_db_stage{of="xids"}': "3"},
    "ApplianceDatabaseStopped": {'appliance_db_stage{of="xids"}': "4"},
    "ApplianceBackupOld": {"appliance_db_backup_timestamp_seconds": "-130000"},
    "ApplianceBackupDiskFull": {"appliance_db_backup_free_bytes": "1000000000"},
}

AS_WELL = {
    "ApplianceDiskFull": ["ApplianceDiskFills"],
    "ApplianceDatabaseFailsafe": ["ApplianceDatabaseLagging"],
    "ApplianceDatabaseWarnings": ["ApplianceDatabaseLagging", "ApplianceDatabaseFailsafe"],
    "ApplianceDatabaseStopped": [
        "ApplianceDatabaseLagging",
        "ApplianceDatabaseFailsafe",
        "ApplianceDatabaseWarnings",
    ],
}
"""What has to be true as well."""

NOT_ASKED: list[dict[str, str | None]] = [
    {"appliance_db_up": None},
    {"appliance_db_read_timestamp_seconds": "0"},
]
"""A timer that never ran, or runs no more."""

FLAPPING: dict[str, dict[str, str | None]] = {
    "ApplianceEngineAway": {"appliance_engine_up": "1x0 0x3 " * (MINUTES // 5 + 1)},
    "ApplianceDatabaseTakesNoWrites": {
        'appliance_database_writes{state="closed"}': "0x1 1x0 " * (MINUTES // 3 + 1)
    },
}
"""What comes up for moments in between, for less than any alert would wait."""


def series(values: dict[str, str | None]) -> list[dict[str, str]]:
    """A day's beginning in promtool's notation: value, what is added, how often; or as it is written."""

    def written(text: str) -> str:
        if "x" in text:
            return text
        first, _, step = text.partition("+")
        return f"{first}+{step or 0}x{MINUTES}"

    return [
        {"series": name, "values": written(text)}
        for name, text in values.items()
        if text is not None
    ]


def firing(values: dict[str, str | None], expected: list[str]) -> dict[str, Any]:
    """One of promtool's tests: exactly these alerts fire at the end."""
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in expected]
    return {
        "interval": "1m",
        "input_series": series(values),
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{MINUTES - 10}m",
                "exp_samples": samples,
            }
        ],
    }


async def test_they_ask_only_for_what_one_scrape_of_a_box_tells(
    door: Door, decoder: Decoder, tmp_path: Path
) -> None:
    data_dir = door.services.config.paths.data_dir
    note_end(data_dir, "db-backup", is_success=True, now_s=5)
    note_end(data_dir, "cache-audit", is_success=True, now_s=6)
    note_end(data_dir, "cache-audit", is_success=False, now_s=7)
    backups = Backups(newest_at=None, free_bytes=3, disk_bytes=4)
    note_database(data_dir, exposition(snapshot(), backups))
    async with door.session.get(door.url + "/metrics") as answer:
        text = await answer.text()
    parsed = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert parsed["appliance_task_failed", "db-backup"] == 0
    assert parsed["appliance_task_failed", "cache-audit"] == 1
    assert parsed["appliance_task_success_timestamp_seconds", "cache-audit"] == 6
    assert 0 < parsed["appliance_disk_free_bytes",] <= parsed["appliance_disk_bytes",]
    told = {name for name, *_ in parsed} | set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
    with engine_in_thread(decoder, tmp_path / "e.sock"):
        async with EngineClient(tmp_path / "e.sock") as client:
            await client.wait_ready()
            told |= {f"appliance_engine_{name}" for name in (await client.ask()).values}
    for rule in RULES:
        for name in re.findall(r"appliance_\w+", rule["expr"]):
            assert re.sub(r"_(bucket|count)$", "", name) in told, f"{rule['alert']}: {name}"


def test_every_alert_has_a_command_and_a_name_of_its_own() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert re.match(
            r"appliance (status|doctor|cache (stats|audit)|db (status|diagnose|plan|run|journal status))$"
            r"|journalctl -u appliance-.+\.service$|df -h /var/backups/appliance$",
            rule["annotations"]["action"],
        )


def test_every_alert_is_tried() -> None:
    assert set(SICK) == {rule["alert"] for rule in RULES}


needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed"
)


@needs_promtool
def test_each_fires_when_it_should_and_none_on_a_healthy_box(tmp_path: Path) -> None:
    tests = [firing({**HEALTHY}, [])]
    tests += [
        firing({**HEALTHY, **change}, [name, *AS_WELL.get(name, [])])
        for name, change in SICK.items()
    ]
    tests += [firing({**HEALTHY, **change}, ["ApplianceDatabaseNotAsked"]) for change in NOT_ASKED]
    tests += [firing({**HEALTHY, **change}, [name]) for name, change in FLAPPING.items()]
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": tests}))
    (tmp_path / "rules.yml").write_text(alert_rules())
    promtool("test", "rules", str(path))


@needs_promtool
def test_the_scrape_configuration_of_the_docs_is_one(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "operating.md").read_text(encoding="utf-8")
    (written,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "prometheus.yml").write_text(written)
    (tmp_path / "appliance.rules.yml").write_text(alert_rules())
    promtool("check", "config", str(tmp_path / "prometheus.yml"))
    (job,) = yaml.safe_load(written)["scrape_configs"]
    assert job.get("metrics_path", "/metrics") == "/metrics"
    assert job["static_configs"] == [{"targets": [f"127.0.0.1:{ServerConfig().port}"]}]


def promtool(*words: str) -> None:
    ended = subprocess.run(("promtool", *words), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
