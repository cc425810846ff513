"""Faults planted one by one into a healthy box: each is found by its name, and alone.

Those of `PLANTED` are really there: files, sockets, mounts and limits of this machine, looked at as the
command does. `TOLD` are facts that no test can make, such as huge pages.
"""

from __future__ import annotations

import json
import os
import pwd
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from appliance.cli.doctor import checks, faults_of
from appliance.cli.doctor_subject import Fault, Installed, Machine, Subject
from appliance.cli.service_states import ServiceState
from appliance.cli.system_files import GPU_CONTROL
from appliance.config import ApiKey, Config, ModelSource, Paths, ServerConfig, dump_config
from appliance.dbops.cluster.binaries import find_binaries
from appliance.dbops.settings import SUPERUSER
from appliance.file_access import Who, user
from tests.drill_fixtures import SYSTEM, binaries_of
from tests.model_fixtures import tiny_model, write_directory, write_gguf

GIB = 1 << 30
SERVICE_USER = "daemon"
"""Any user with a home that is there."""

LOOPBACK = "127.61.0.3"
"""Of loopback, and no other program's: ports of 127.0.0.1 come and go."""

UNSHARE = ("unshare", "--mount", "--propagation", "private", "sh", "-c")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="other users' files need root")


def service_user() -> Who:
    who = user(SERVICE_USER)
    assert who is not None
    return who


UID = service_user().uid


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_directory(tmp_path_factory.mktemp("model"), tiny_model())


@pytest.fixture
def healthy(tmp_path: Path, model: Path) -> Subject:
    """A box in which nothing is wrong; its files are real ones, their owner is another user."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    for name in ("state", "run", "home"):
        (tmp_path / name).mkdir(mode=0o700)
        os.chown(tmp_path / name, UID, UID)
    shutil.copytree(model, tmp_path / "model")
    (tmp_path / "model").chmod(0o755)
    for file in (tmp_path / "model").iterdir():
        file.chmod(0o644)
    (tmp_path / "credentials").mkdir(mode=0o700)
    config = Config(
        model=ModelSource(path=tmp_path / "model", name="m"),
        paths=Paths(data_dir=tmp_path / "state", run_dir=tmp_path / "run"),
        server=ServerConfig(host=LOOPBACK),
    )
    path = tmp_path / "appliance.toml"
    path.write_text(dump_config(config))
    path.chmod(0o644)
    machine = Machine(
        now_s=time.time(),
        memory_total_bytes=64 * GIB,
        huge_pages_bytes=0,
        gpu_nodes=(),
        open_files_max=65536,
        locked_bytes_max=GIB,
        engine_bytes_max=64 * GIB,
        services={},
    )
    return Subject(
        config_path=path,
        written=config,
        config=config,
        who=service_user(),
        home=tmp_path / "home",
        machine=machine,
        credentials=tmp_path / "credentials",
    )


def found(subject: Subject) -> list[Fault]:
    """What the checks find in a subject as it is told."""
    return [fault for check in checks() for fault in check(subject)]


def looked_up(subject: Subject) -> list[Fault]:
    """What the command finds: from the file of settings, this machine and its users."""
    return list(faults_of(subject.config_path, SERVICE_USER))


def command(subject: Subject, *around: str, shell: str = "") -> list[dict[str, str]]:
    """What `appliance doctor` prints, within a program or after commands of a shell of its own."""
    words = ["-m", "appliance.cli.main", "doctor", "--json", "--user", SERVICE_USER]
    words = [sys.executable, *words, "--config", str(subject.config_path)]
    if shell:
        around = (*UNSHARE, f"{shell} && exec {shlex.join(words)}")
        words = []
    ended = subprocess.run((*around, *words), capture_output=True, text=True, check=False)
    assert ended.returncode in (0, 1), ended.stderr
    faults: list[dict[str, str]] = json.loads(ended.stdout)["faults"]
    return faults


def with_settings(subject: Subject, section: str, **values: object) -> Subject:
    """Other settings, in the file as well."""
    replaced = msgspec.structs.replace(getattr(subject.config, section), **values)
    config = msgspec.structs.replace(subject.config, **{section: replaced})
    subject.config_path.write_text(dump_config(config))
    return replace(subject, config=config, written=config)


def with_machine(subject: Subject, **values: object) -> Subject:
    return replace(subject, machine=replace(subject.machine, **values))  # type: ignore[arg-type]


def with_services(subject: Subject, **states: ServiceState) -> Subject:
    return with_machine(
        subject, services={f"appliance-{unit}.service": state for unit, state in states.items()}
    )


def chmod(name: str, mode: int) -> Callable[[Subject], Subject]:
    def plant(subject: Subject) -> Subject:
        (subject.config_path.parent / name).chmod(mode)
        return subject

    return plant


def database_away(subject: Subject) -> Subject:
    return with_settings(subject, "database", url="postgresql:///chat?host=/nowhere")


def key_in_open_file(subject: Subject) -> Subject:
    return with_settings(subject, "server", api_keys=(ApiKey(tenant="a", sha256="5e" * 32),))


def open_secret(subject: Subject) -> Subject:
    assert subject.credentials is not None
    (subject.credentials / "database_url").write_text("postgresql://chat:secret@db/chat")
    (subject.credentials / "database_url").chmod(0o644)
    return subject


def unknown_secret(subject: Subject) -> Subject:
    assert subject.credentials is not None
    (subject.credentials / "databaseurl").touch(mode=0o600)
    return subject


def wrong_secret(subject: Subject) -> Subject:
    assert subject.credentials is not None
    path = subject.credentials / "api_keys.toml"
    path.touch(mode=0o600)
    path.write_text("sk-secret")
    return subject


def damaged_model(subject: Subject) -> Subject:
    (subject.config.model.path / "tokenizer.json").unlink()
    return subject


def wrong_owner(subject: Subject) -> Subject:
    os.chown(subject.config.paths.data_dir, 0, 0)
    return subject


def stale_socket(subject: Subject) -> Subject:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(subject.config.paths.engine_socket))
    return subject


def file_for_socket(subject: Subject) -> Subject:
    subject.config.paths.admin_socket.touch()
    return subject


def old_cluster(subject: Subject) -> Subject:
    folder = subject.config.paths.postgres_dir
    folder.mkdir(mode=0o700)
    (folder / "PG_VERSION").write_text("13\n")
    os.chown(folder, UID, UID)
    return subject


def foreign_cluster(subject: Subject) -> Subject:
    folder = subject.config.paths.postgres_dir
    folder.mkdir(mode=0o700)
    (folder / "PG_VERSION").write_text(f"{find_binaries().major}\n")
    return subject


def half_a_cluster(subject: Subject) -> Subject:
    folder = subject.config.paths.postgres_dir
    folder.mkdir(mode=0o700)
    os.chown(folder, UID, UID)
    return subject


def long_run_dir(subject: Subject) -> Subject:
    folder = subject.config.paths.run_dir / ("x" * 100)
    folder.mkdir()
    os.chown(folder, UID, UID)
    return with_settings(subject, "paths", run_dir=folder)


def future_file(subject: Subject) -> Subject:
    later = time.time() + 86_400
    os.utime(subject.config_path, (later, later))
    return subject


def as_gguf(subject: Subject) -> Subject:
    path = subject.config_path.with_name("model.gguf")
    write_gguf(path, tiny_model())
    path.chmod(0o644)
    return with_settings(subject, "model", path=path)


Plant = Callable[[Subject], Subject]


def installed(subject: Subject, **found: Any) -> Subject:
    return replace(subject, installed=Installed(**found))


def secret(name: str, content: bytes) -> Plant:
    def plant(subject: Subject) -> Subject:
        assert subject.credentials is not None
        (subject.credentials / name).touch(mode=0o600)
        (subject.credentials / name).write_bytes(content)
        return subject

    return plant


def dangling_secret(name: str) -> Plant:
    def plant(subject: Subject) -> Subject:
        assert subject.credentials is not None
        (subject.credentials / name).symlink_to("/srv/none")
        return subject

    return plant


def with_gpus(subject: Subject, count: int) -> Subject:
    nodes = (GPU_CONTROL, *(Path(f"/dev/nvidia{number}") for number in range(count)))
    return with_machine(subject, gpu_nodes=nodes)


def with_trace(subject: Subject, folder: str) -> Subject:
    return with_settings(
        subject, "engine", trace_path=subject.config_path.parent / folder / "trace"
    )


def of_root(name: str) -> Plant:
    """As a command leaves it that root has run."""

    def plant(subject: Subject) -> Subject:
        path = subject.config.paths.data_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        if path.parent != subject.config.paths.data_dir:
            for folder in (path.parent, path.parent.parent):
                os.chown(folder, UID, UID)
        return subject

    return plant


def open_cluster(subject: Subject) -> Subject:
    folder = subject.config.paths.postgres_dir
    folder.mkdir()
    (folder / "PG_VERSION").write_text(f"{find_binaries().major}\n")
    os.chown(folder, UID, UID)
    folder.chmod(0o777)
    return subject


def url_by_hand(url: str) -> Plant:
    """In the file, where an editor puts whatever a person types."""

    def plant(subject: Subject) -> Subject:
        text = subject.config_path.read_text()
        assert "[database]\n" in text
        subject.config_path.write_text(text.replace("[database]\n", f'[database]\nurl = "{url}"\n'))
        return subject

    return plant


def closed(subject: Subject) -> Subject:
    """With a key, so that it may be reached by others, in a file that they may not read."""
    os.chown(subject.config_path, 0, service_user_gid())
    subject.config_path.chmod(0o640)
    return with_settings(subject, "server", api_keys=(ApiKey(tenant="a", sha256="5e" * 32),))


def service_user_gid() -> int:
    return pwd.getpwnam(SERVICE_USER).pw_gid


TOLD: list[tuple[str, Plant]] = [
    # The folder of secrets is an installed box's alone; its files here are real.
    ("secret-open-to-all", open_secret),
    ("credential-unknown", unknown_secret),
    ("credential-wrong", wrong_secret),
    ("credentials-missing", lambda s: replace(s, credentials=s.config_path / "none")),
    ("home-missing", lambda s: replace(s, home=None)),
    ("huge-pages-hold-memory", lambda s: with_machine(s, huge_pages_bytes=63 * GIB)),
    ("service-failed", lambda s: with_services(s, x=ServiceState(active="failed"))),
    (
        "service-restarting",
        lambda s: with_services(s, x=ServiceState(active="activating", sub="auto-restart")),
    ),
    ("units-differ", lambda s: installed(s, differing=("write   /etc/x (differs)",))),
    ("other-version", lambda s: installed(s, other="/opt/appliance/1 is installed")),
    ("program-not-reachable", lambda s: installed(s, unreachable="it lies in a home")),
    ("not-installable", lambda s: installed(s, refused="server.port: 0")),
    ("credential-wrong", dangling_secret("database_url")),
    ("credential-wrong", dangling_secret("api_keys.toml")),
    ("credential-wrong", secret("api_keys.toml", 'tenant = "Jürgen"'.encode("latin-1"))),
    ("credential-wrong", secret("database_url", b"postgresql://u:secret@db:99999/chat")),
    ("credential-wrong", secret("database_url", b"postgresql://[::1/secret")),
    ("memory-short", lambda s: with_machine(s, engine_bytes_max=1 * GIB)),
    ("gpu-missing", lambda s: with_settings(with_gpus(s, 1), "engine", device="cuda:7")),
    ("gpu-missing", lambda s: with_settings(with_gpus(s, 0), "engine", device="cuda")),
    (
        "trace-not-writable",
        lambda s: with_trace(with_machine(s, engine_writes=(Path("/var/lib/appliance"),)), "state"),
    ),
]
PLANTED: list[tuple[str, Plant]] = [
    ("config-not-readable", chmod("appliance.toml", 0o600)),
    ("config-open-to-all", key_in_open_file),
    ("clock-behind", future_file),
    ("run-folder-missing", lambda s: with_settings(s, "paths", run_dir=Path("/run/nowhere"))),
    ("state-folder-missing", lambda s: with_settings(s, "paths", data_dir=Path("/srv/nowhere"))),
    ("wrong-owner", wrong_owner),
    ("state-open-to-all", chmod("state", 0o755)),
    ("disk-cache-too-large", lambda s: with_settings(s, "engine", disk_cache_bytes=1 << 60)),
    ("model-missing", lambda s: with_settings(s, "model", path=Path("/srv/models/none"))),
    ("model-not-readable", chmod("model", 0o700)),
    ("model-not-readable", chmod("model/model.safetensors", 0o600)),
    ("model-damaged", damaged_model),
    ("driver-missing", lambda s: with_settings(s, "engine", device="cuda:0")),
    ("memory-short", lambda s: with_settings(s, "engine", kv_cache_bytes=1 << 50)),
    ("database-version", old_cluster),
    ("database-owner", foreign_cluster),
    ("database-damaged", half_a_cluster),
    ("database-away", database_away),
    ("socket-path-long", long_run_dir),
    ("stale-socket", stale_socket),
    ("socket-in-the-way", file_for_socket),
    ("address-not-here", lambda s: with_settings(closed(s), "server", host="192.0.2.1")),
    ("model-not-converted", as_gguf),
    ("trace-not-writable", lambda s: with_trace(s, "nowhere")),
    ("trace-not-writable", lambda s: with_trace(s, "model")),
    ("wrong-owner", of_root("journal")),
    ("wrong-owner", of_root("kv/engine/slots")),
    ("database-open-to-all", open_cluster),
    ("config-wrong", lambda s: with_settings(s, "server", host="0.0.0.0")),
    ("config-wrong", url_by_hand("postgresql://u:secret@db:99999/chat")),
    ("config-wrong", url_by_hand("postgresql://[::1/db")),
    ("config-wrong", url_by_hand("postgresql://u:secret/chat@db/chat")),
    ("database-away", url_by_hand("postgresql://" + "x" * 70 + "/chat")),
    ("database-away", url_by_hand("postgresql:///chat?host=/no%00where")),
    ("address-not-here", lambda s: with_settings(closed(s), "server", host="x" * 70)),
]
assert len({name for name, _ in PLANTED}) >= 20


def test_a_healthy_box_passes(healthy: Subject) -> None:
    assert found(healthy) == []
    assert looked_up(healthy) == []


@pytest.mark.parametrize(
    ("name", "plant"), PLANTED, ids=[f"{n}-{f[0]}" for n, f in enumerate(PLANTED)]
)
def test_a_planted_fault_is_found_by_name_and_alone(
    healthy: Subject, name: str, plant: Plant
) -> None:
    (fault,) = looked_up(plant(healthy))
    assert fault.name == name
    assert fault.mend
    assert "secret" not in fault.what


@pytest.mark.parametrize(("name", "plant"), TOLD, ids=[f"{n}-{f[0]}" for n, f in enumerate(TOLD)])
def test_a_fact_of_the_machine_is_judged_by_name_and_alone(
    healthy: Subject, name: str, plant: Plant
) -> None:
    (fault,) = found(plant(healthy))
    assert fault.name == name
    assert fault.mend
    assert "secret" not in fault.what


def test_the_command_that_a_data_folder_of_another_version_is_mended_by_works(
    healthy: Subject,
) -> None:
    path, folder = healthy.config_path, healthy.config.paths.postgres_dir
    old = binaries_of(SYSTEM)
    folder.mkdir(mode=0o700)
    os.chown(folder, UID, UID)
    words = (old.program("initdb"), "-D", folder, "-U", SUPERUSER, "--encoding=UTF8", "--locale=C")
    subprocess.run((*words, "--data-checksums"), check=True, capture_output=True, user=UID)
    (fault,) = looked_up(healthy)
    assert fault.mend == f"appliance db upgrade --config {path}"
    around = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(fault.mend, shell=True, check=True, env=os.environ | around)
    assert looked_up(healthy) == []
    (folder / "PG_VERSION").write_text("99\n")
    (fault,) = looked_up(healthy)
    assert fault.mend == f"appliance db upgrade --config {path} --rollback"
    (folder / "PG_VERSION").write_text("9\n")
    (fault,) = found(healthy)
    stop, install, upgrade, start = fault.mend.split(" && ")
    assert stop.startswith("systemctl stop appliance.target appliance-server.service")
    assert install == "apt-get install postgresql-9"
    assert (upgrade, start) == (
        f"appliance db upgrade --config {path}",
        "systemctl start appliance.target",
    )


def test_a_port_that_another_program_has_is_found(healthy: Subject) -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        subject = with_settings(healthy, "server", port=other.getsockname()[1])
        assert [fault.name for fault in looked_up(subject)] == ["port-taken"]
        active = ServiceState(active="active")
        running = with_machine(subject, services={"appliance-server.socket": active})
        assert found(running) == []
        # With the server stopped alone the target and its timers are still active.
        units = {"appliance.target": active, "appliance-db-status.timer": active}
        stopped = {**units, "appliance-server.socket": ServiceState(active="failed")}
        names = [fault.name for fault in found(with_machine(subject, services=units))]
        assert names == ["port-taken"]
        names = [fault.name for fault in found(with_machine(subject, services=stopped))]
        assert names == ["port-taken", "service-failed"]


def test_a_stopped_appliance_is_one_fault_whatever_follows_from_it(healthy: Subject) -> None:
    inactive, failed = ServiceState(active="inactive"), ServiceState(active="failed")
    states = {"appliance.target": inactive, "appliance-db-status.service": failed}
    stopped = with_machine(stale_socket(healthy), services=states)
    (fault,) = found(stopped)
    assert (fault.name, fault.mend) == ("stopped", "systemctl start appliance.target")
    damaged_model(healthy)
    # What keeps it from starting is no consequence.
    assert [fault.name for fault in found(stopped)] == ["model-damaged", "stopped"]
    assert "stopped" not in [fault.name for fault in found(replace(stopped, credentials=None))]


@pytest.mark.parametrize("secret", ["postgresql:///chat?host=/nowhere", b"\xff\xff"])
def test_an_installed_box_is_looked_at_as_its_services_have_it(
    healthy: Subject, monkeypatch: pytest.MonkeyPatch, secret: str | bytes
) -> None:
    folder = healthy.credentials
    assert folder is not None
    monkeypatch.setattr("appliance.cli.doctor.CONFIG", healthy.config_path)
    monkeypatch.setattr("appliance.cli.installed.CREDENTIALS", folder)
    monkeypatch.setattr("appliance.cli.doctor_subject.services", dict)
    monkeypatch.setattr("appliance.cli.doctor._installed", Installed)
    assert looked_up(healthy) == []
    (folder / "database_url").touch(mode=0o600)
    if isinstance(secret, str):
        (folder / "database_url").write_text(secret)
        (fault,) = looked_up(healthy)
        assert (fault.name, fault.what.partition(":")[0]) == (
            "database-away",
            "credential database_url",
        )
    else:
        (folder / "database_url").write_bytes(secret)
        (fault,) = looked_up(healthy)
        assert fault.name == "credential-wrong"


def test_a_typo_in_the_settings_a_missing_file_and_a_missing_user_end_the_search(
    healthy: Subject,
) -> None:
    path = healthy.config_path
    (fault,) = faults_of(path, "no-such-user")
    assert fault.name == "user-missing"
    path.write_text(path.read_text() + "\n[servr]\nport = 1\n")
    (fault,) = faults_of(path, None)
    assert fault.name == "config-wrong"
    assert "servr" in fault.what
    (fault,) = faults_of(path.with_name("none.toml"), None)
    assert fault.name == "config-missing"


def test_what_cannot_be_looked_at_is_a_fault_and_hides_no_other(
    healthy: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(_: object) -> object:
        raise PermissionError(13, "Permission denied", "/srv/models/x")

    monkeypatch.setattr("appliance.cli.doctor_files.check_model", cannot)
    wrong_owner(healthy)
    assert {fault.name for fault in looked_up(healthy)} == {"not-looked-at", "wrong-owner"}


def test_the_command_finds_what_mounts_and_limits_do(healthy: Subject) -> None:
    assert command(healthy) == []
    state, model = healthy.config.paths.data_dir, healthy.config.model.path
    owned = f"uid={UID},gid={UID},mode=0700"
    tries = {
        "disk-full": f"mount -t tmpfs -o size=64m,{owned} tmpfs {state}",
        "disk-read-only": f"mount -t tmpfs -o size=4g,ro,{owned} tmpfs {state}",
    }
    for name, shell in tries.items():
        assert [fault["name"] for fault in command(healthy, shell=shell)] == [name]
    limited = command(healthy, "prlimit", "--nofile=256")
    assert [fault["name"] for fault in limited] == ["open-files-low"]
    hidden = with_settings(healthy, "model", path=Path("/home/model"))
    shell = f"mount -t tmpfs tmpfs /home && cp -r {model} /home/model"
    assert [fault["name"] for fault in command(hidden, shell=shell)] == ["model-hidden"]
    # By a link to it, and by one of its files.
    link = healthy.config_path.with_name("link")
    link.symlink_to("/home/model")
    linked = with_settings(healthy, "model", path=link)
    assert [fault["name"] for fault in command(linked, shell=shell)] == ["model-hidden"]
    weights = model / "model.safetensors"
    shell = f"{shell} && mv {weights} {weights}.old && ln -s /home/model/{weights.name} {weights}"
    healthy = with_settings(healthy, "model", path=model)
    (fault,) = command(healthy, shell=shell)
    assert fault["name"] == "model-hidden"
    assert "/home/model/model.safetensors" in fault["what"]
