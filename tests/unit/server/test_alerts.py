"""The alert rules of the whole appliance: they ask for what is told, and each fires when it should."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.model.decoder import Decoder
from appliance.wire.client import EngineClient
from tests.engine_fixtures import decoder, engine_in_thread, model_directory
from tests.unit.server.door import Door

__all__ = ["decoder", "model_directory"]

FILE = Path(str(resources.files("appliance.server") / "alerts.yml"))
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]
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
}
"""Values at the start, and what is added each minute."""

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
}


FLAPPING = {
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


async def test_they_ask_only_for_what_server_and_engine_tell(
    door: Door, decoder: Decoder, tmp_path: Path
) -> None:
    async with door.session.get(door.url + "/metrics") as answer:
        told = set(re.findall(r"^# TYPE (\w+) ", await answer.text(), re.MULTILINE))
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
            r"appliance (status|doctor|cache (stats|audit)|db (status|journal status))$",
            rule["annotations"]["action"],
        )


def test_every_alert_is_tried() -> None:
    assert set(SICK) == {rule["alert"] for rule in RULES}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_each_fires_when_it_should_and_none_on_a_healthy_box(tmp_path: Path) -> None:
    tests = [firing({**HEALTHY}, [])]
    tests += [firing({**HEALTHY, **change}, [name]) for name, change in SICK.items()]
    tests += [firing({**HEALTHY, **change}, [name]) for name, change in FLAPPING.items()]
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(FILE)], "tests": tests}))
    ended = subprocess.run(
        ("promtool", "test", "rules", str(path)), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
