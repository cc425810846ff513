"""Each hardening directive of each unit, tried from inside the sandbox of a running system."""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.box.booted import Box
from tests.box.unit_copies import run_copy

pytestmark = pytest.mark.slow

UNITS = Path(__file__).parents[2] / "systemd"
SERVICES = sorted(path.name for path in UNITS.glob("*.service"))
PROBE = Path(__file__).with_name("probe.py")
ENGINE, POSTGRES, SERVER = (
    "appliance-engine@.service",
    "appliance-postgres.service",
    "appliance-server.service",
)
HAS_CHOWN = (POSTGRES, "appliance-db-backup.service", "appliance-db-status.service")
WITHOUT_SECRETS = (ENGINE, POSTGRES)
NO_FAMILY = "EAFNOSUPPORT"
DEVICES = {
    *("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "mqueue"),
    *("log", "fd", "stdin", "stdout", "stderr", "core", "hugepages", "console", "char"),
}
EXPECTED: Mapping[str, Any] = {
    "User": True,
    "NoNewPrivileges": "1",
    "CapabilityBoundingSet": 0,
    "AmbientCapabilities": 0,
    "effective": 0,
    "LimitCORE": 0,
    "UMask": "0o600",
    "RestrictSUIDSGID": "EPERM",
    "LockPersonality": "EPERM",
    "PrivateTmp": ["ENOENT", "ok"],
    "PrivateUsers": True,
    "ProtectSystem": ["EROFS"],
    "ReadOnlyPaths": "EROFS",
    "state": "ok",
    "sockets": "ok",
    "secrets": "EACCES",
    "ProtectClock": "EPERM",
    "ProtectControlGroups": "EROFS",
    "ProtectHostname": "EPERM",
    "ProtectKernelLogs": "EPERM",
    "ProtectKernelModules": "EPERM",
    "ProtectProc": False,
    "RestrictNamespaces": ["EPERM", "EPERM"],
    "RestrictRealtime": "EPERM",
    "RestrictAddressFamilies": ["ok", NO_FAMILY, NO_FAMILY, NO_FAMILY, NO_FAMILY],
}
"""What is so in every service."""

NOT_TRIED = {
    "Group": "with User",
    "DevicePolicy": "the container has no devices beyond those of PrivateDevices",
    "IPAddressDeny": "needs pure cgroup2 with bpf; no address family is left to try it with",
    "SystemCallArchitectures": "needs machine code of another architecture",
    "SystemCallErrorNumber": "every EPERM of a filtered call",
    "RemoveIPC": "the name space of PrivateIPC ends with the service",
    "OOMScoreAdjust": "no boundary",
    "LimitNOFILE": "no boundary",
    "LimitMEMLOCK": "no boundary",
    "CacheDirectory": "as StateDirectory",
    "CacheDirectoryMode": "as StateDirectory",
}
CHECKED_BELOW = {
    *("PrivateIPC", "PrivateNetwork", "ProtectHome", "ProtectKernelTunables", "ProcSubset"),
    *("MemoryDenyWriteExecute", "PrivateDevices", "SystemCallFilter", "TasksMax", "MemoryMax"),
    *("LoadCredential", "ReadWritePaths", "StateDirectory", "StateDirectoryMode"),
}
NO_DIRECTIVES = {
    *("Type", "ExecStart", "ExecStopPost", "Environment", "Restart", "RestartSec", "KillMode"),
}


@pytest.fixture(scope="module")
def probed(installed: Box) -> Mapping[str, Mapping[str, Any]]:
    """What the probe found, by unit; and of the box itself under `box`."""
    box, root = installed, installed.root
    (root / "opt/probe.py").write_bytes(PROBE.read_bytes())
    (root / "home/ann").mkdir()
    box.run("touch", "/tmp/of-the-box", "/root/of-the-box")
    spaces = {
        name: box.run("readlink", f"/proc/self/ns/{space}").stdout.strip()
        for name, space in (("PrivateIPC", "ipc"), ("PrivateNetwork", "net"))
    }
    found: dict[str, dict[str, Any]] = {"box": {**spaces}}
    for unit in SERVICES:
        name = "probe-" + re.sub(r"\W", "-", unit.removesuffix(".service")).strip("-")
        worked, said = run_copy(box, unit, name, "/opt/appliance/current/bin/python /opt/probe.py")
        lines = [line for line in said.splitlines() if line.startswith("PROBED ")]
        assert worked, said
        assert lines, said
        found[unit] = json.loads(lines[-1].removeprefix("PROBED "))
        found[unit]["MemoryMax meant"] = int(box.show(f"{name}.service", "MemoryMax"))
    return found


def directives(unit: str) -> set[str]:
    """What the [Service] section of a unit sets."""
    text = (UNITS / unit).read_text(encoding="utf-8").partition("[Service]")[2]
    return set(re.findall(r"^(\w+)=", text.partition("\n[")[0], re.MULTILINE))


@pytest.mark.parametrize("unit", SERVICES)
def test_every_directive_of_a_unit_is_tried_or_says_why_not(unit: str) -> None:
    known = EXPECTED.keys() | NOT_TRIED.keys() | CHECKED_BELOW | NO_DIRECTIVES
    known |= {"TimeoutStartSec", "TimeoutStopSec", "WatchdogSec"}
    assert directives(unit) <= known


def test_what_is_said_of_a_directive_is_of_one_that_a_unit_has() -> None:
    used = set().union(*map(directives, SERVICES))
    assert NOT_TRIED.keys() | CHECKED_BELOW | NO_DIRECTIVES <= used


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_forbidden_to_all_is_refused_in_each(
    probed: Mapping[str, Mapping[str, Any]], name: str
) -> None:
    found = {unit: probed[unit][name] for unit in SERVICES}
    if name == "sockets":
        found.pop(POSTGRES)  # It has nothing to do there.
        assert probed[POSTGRES][name] == "EROFS"
    assert found == dict.fromkeys(found, EXPECTED[name])


@pytest.mark.parametrize("unit", SERVICES)
def test_a_service_has_name_spaces_of_its_own_and_sees_no_home(
    probed: Mapping[str, Mapping[str, Any]], unit: str
) -> None:
    for name in ("PrivateIPC", "PrivateNetwork"):
        assert probed[unit][name] != probed["box"][name]
    assert probed[unit]["ProtectHome"], "no home was tried"
    assert not {"ok"} & set(probed[unit]["ProtectHome"]), probed[unit]["ProtectHome"]


@pytest.mark.parametrize("unit", SERVICES)
def test_a_service_sees_few_devices_and_no_more_of_proc_than_it_needs(
    probed: Mapping[str, Mapping[str, Any]], unit: str
) -> None:
    assert {"null"} <= set(probed[unit]["PrivateDevices"]) <= DEVICES
    assert probed[unit]["ProcSubset"] == (unit != SERVER)
    proc_sys = "absent" if unit == SERVER else "read-only"
    assert probed[unit]["ProtectKernelTunables"] == [proc_sys, "read-only"]
    credentials = probed[unit]["credentials"]
    assert credentials == ("ENOENT" if unit in WITHOUT_SECRETS else "ok")


@pytest.mark.parametrize("unit", SERVICES)
def test_the_calls_that_a_service_does_not_need_are_filtered_with_an_error(
    probed: Mapping[str, Mapping[str, Any]], unit: str
) -> None:
    # These are anybody's right outside: it is the filter that refuses, and it kills nobody.
    assert probed[unit]["SystemCallFilter"] == {
        "ptrace": "EPERM",
        "mount": "EPERM",
        "userfaultfd": "EPERM",
        "nice": "EPERM" if unit == SERVER else "ok",
    }
    assert probed[unit]["chown"] == ("ok" if unit in HAS_CHOWN else "EPERM")
    writable_code = probed[unit]["MemoryDenyWriteExecute"]
    assert writable_code == ("ok" if unit == ENGINE else "EPERM")


@pytest.mark.parametrize("unit", SERVICES)
def test_a_service_starts_no_more_threads_than_its_limit(
    installed: Box, probed: Mapping[str, Mapping[str, Any]], unit: str
) -> None:
    if not installed.limits_hold:
        pytest.skip("this machine gives a container no memory and task limits")
    text = (UNITS / unit).read_text(encoding="utf-8")
    found = re.search(r"^TasksMax=(\d+)$", text, re.MULTILINE)
    assert found is not None
    assert probed[unit]["TasksMax"] == int(found[1]) - 1


@pytest.mark.parametrize("unit", SERVICES)
def test_a_service_gets_no_more_memory_than_its_limit(
    installed: Box, probed: Mapping[str, Mapping[str, Any]], unit: str
) -> None:
    if not installed.limits_hold:
        pytest.skip("this machine gives a container no memory and task limits")
    text = (UNITS / unit).read_text(encoding="utf-8")
    found = re.search(r"^MemoryMax=(\d+)(G|%)$", text, re.MULTILINE)
    assert found is not None
    limit, total = probed[unit]["MemoryMax"], psutil.virtual_memory().total
    # The kernel counts in pages; a share is one of what this machine may have.
    assert limit == probed[unit]["MemoryMax meant"] // mmap.PAGESIZE * mmap.PAGESIZE
    assert limit == int(found[1]) << 30 if found[2] == "G" else limit <= total * int(found[1]) / 100


def test_the_docs_tell_the_exposure_that_the_box_prints(box: Box) -> None:
    text = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")
    told = re.search(r"says (\S+) for the server, (\S+) for the engine, (\S+) for PostgreSQL", text)
    assert told is not None
    said = box.run(
        "systemd-analyze",
        "security",
        "--no-pager",
        SERVER,
        ENGINE.replace("@.", "@0."),
        POSTGRES,
        check=False,
    ).stdout
    assert list(told.groups()) == re.findall(r"exposure level for appliance-\S+: (\d+\.\d)", said)
