"""What an upgrade would restart, and how two versions are compared; the rest is in tests/box."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from appliance.cli import system_apply, system_upgrade, system_version
from appliance.cli.main import main
from appliance.cli.system_files import Link
from appliance.cli.system_plan import Command, Step, Write
from appliance.cli.system_upgrade import restarts_of, run_upgrade
from appliance.cli.system_version import About, about, ask
from appliance.config import Config, parse_config
from appliance.errors import ConfigError

NEW = About(version="2", prefix="/opt/appliance/2", schema=7, engine="e", postgres="p")


CODE = "CHANGED = True\n"


def config(text: str = "") -> Config:
    required = '[model]\npath = "/m"\nname = "m"\n[paths]\ndata_dir = "/d"\nrun_dir = "/r"\n'
    return parse_config(required + text, base=Path("/"))


def restarted(old: About | None, text: str = "") -> list[str]:
    return [" ".join(command.words[2:]) for command in restarts_of(old, NEW, config(text))]


def test_what_is_the_same_in_both_versions_goes_on() -> None:
    replace = msgspec.structs.replace
    server, postgres = "appliance-server.service", "appliance-postgres.service"
    engine = f"{server} appliance-engine@0.service"
    assert restarted(replace(NEW, version="1")) == [server]
    assert restarted(replace(NEW, engine="x")) == [engine]
    assert restarted(replace(NEW, postgres="x")) == [postgres, server]
    assert restarted(None) == [postgres, engine]
    devices = '[engine]\ndevices = ["cuda:0", "cuda:1"]\n'
    assert restarted(None, devices)[1].endswith("engine@0.service appliance-engine@1.service")
    own = '[database]\nurl = "postgresql://chat@/chat?host=/run/postgresql"\n'
    assert restarted(None, own) == [engine]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, About]:
    """A copy of the package, and what it is."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "page", "drill")
    copy = tmp_path_factory.mktemp("copy") / "appliance"
    shutil.copytree(system_version.PACKAGE, copy, ignore=ignored)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system_version, "PACKAGE", copy)
        before = about()
        assert about() == before
    return copy, before


@pytest.mark.parametrize(
    ("file", "code", "engine", "postgres"),
    [
        ("engine/loop.py", CODE, True, False),
        ("model/families/llama.py", CODE, True, False),
        ("wire/frames.py", CODE, True, False),
        ("errors.py", CODE, True, True),
        ("durable.py", CODE, False, True),
        ("file_lock.py", CODE, False, True),
        ("service_manager.py", CODE, True, True),
        ("database_failure.py", CODE, False, True),
        ("dbops/settings.py", CODE, False, True),
        ("dbops/repair/run.py", CODE, False, False),
        ("dbops/cluster/prepare.py", CODE, False, False),
        ("cli/run_process.py", CODE, True, True),
        ("cli/process_options.py", CODE, True, True),
        ("cli/main.py", CODE, False, False),
        ("dbops/cluster/initdb.py", CODE, False, True),
        ("server/app.py", CODE, False, False),
        ("store/ledger.py", CODE, False, False),
        ("maintenance.py", CODE, False, False),
        ("config.py", ("port: Port = 8400", "port: Port = 8401"), False, False),
        ("config.py", ("pool_max: PositiveInt = 4", "pool_max: PositiveInt = 5"), False, True),
        ("config.py", ('/ "postgres"', '/ "pg"'), True, True),
        (
            "config.py",
            ("running_max: PositiveInt = 16", "running_max: PositiveInt = 17"),
            True,
            False,
        ),
    ],
)
def test_a_part_differs_when_what_it_is_made_of_does(
    copied: tuple[Path, About],
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    code: str | tuple[str, str],
    engine: bool,
    postgres: bool,
) -> None:
    copy, before = copied
    monkeypatch.setattr(system_version, "PACKAGE", copy)
    text = (copy / file).read_text(encoding="utf-8")
    changed = text + code if isinstance(code, str) else text.replace(*code)
    assert changed != text
    (copy / file).write_text(changed, encoding="utf-8")
    after = about()
    (copy / file).write_text(text, encoding="utf-8")
    assert (after.engine != before.engine, after.postgres != before.postgres) == (engine, postgres)


@pytest.mark.parametrize(
    ("part", "module", "not_its"),
    [
        (system_version._ENGINE, "appliance.engine.main", {"server", "chat", "store", "dbops"}),
        (system_version._POSTGRES, "appliance.cli.postgres", {"server", "chat", "engine", "model"}),
    ],
    ids=["engine", "postgres"],
)
def test_a_digest_is_over_every_module_that_its_process_loads(
    part: system_version._Part, module: str, not_its: set[str]
) -> None:
    script = f"import sys, {module}, appliance.cli.run_process; print(*sys.modules)"
    ended = subprocess.run(
        (sys.executable, "-c", script), capture_output=True, text=True, check=True
    )
    package = system_version.PACKAGE
    loaded = {
        path
        for name in ended.stdout.split()
        if name.startswith("appliance.")
        and (path := package.parent / f"{name.replace('.', '/')}.py").is_file()
    }
    digested = system_version._files(part)
    assert loaded <= digested, sorted(loaded - digested)
    others = {path.relative_to(package).parts[0] for path in digested}
    assert not others & {*not_its, "prompt", "experiment"}


def test_a_version_that_is_gone_or_too_old_says_nothing_of_itself(tmp_path: Path) -> None:
    assert ask(tmp_path) is None
    program = tmp_path / "bin/appliance"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'usage: appliance'\nexit 2\n")
    program.chmod(0o755)
    assert ask(tmp_path) is None


class Interrupted:
    """An upgrade of links in a folder, whose commands are noted; `at_restart` happens once, in one."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current, self.previous = folder / "current", folder / "previous"
        self.old, self.new = folder / "1", folder / "2"
        self.served = "1"
        self.commands: list[tuple[str, ...]] = []
        self.at_restart: Callable[[], object] | None = None
        self.current.symlink_to(self.old)
        real = system_apply.carry_out
        write = Write(wanted=Link(path=self.current, target=self.new), cause="new version")

        def carried(root: Path, step: Step) -> None:
            if not isinstance(step, Command):
                real(root, step)
                return
            self.commands.append(step.words)
            if step.words[1:3] == ("system", "install"):
                self.current.unlink()
                self.current.symlink_to(Path(step.words[0]).parents[1])
            elif self.at_restart is not None:
                happens, self.at_restart = self.at_restart, None
                happens()

        replace = msgspec.structs.replace
        for name, value in {
            "PROGRAM": self.current,
            "PREVIOUS": self.previous,
            "about": lambda: replace(NEW, prefix=str(self.new)),
            "ask": lambda _: replace(NEW, version="1", prefix=str(self.old)),
            "installed_config": lambda _: config(),
            "install_steps": lambda *_, **__: (
                () if self.current.readlink() == self.new else (write,)
            ),
            "ask_socket": lambda *_, **__: {"version": self.served},
            "carry_out": carried,
        }.items():
            monkeypatch.setattr(system_upgrade, name, value)
        monkeypatch.setattr("os.geteuid", lambda: 0)

    def upgrade(self) -> int:
        return run_upgrade(Path("/"), execute=True, no_way_back=False)

    def links(self) -> tuple[Path, Path | None]:
        return (
            self.current.readlink(),
            self.previous.readlink() if self.previous.is_symlink() else None,
        )


def raising(error: BaseException) -> Callable[[], object]:
    def fail() -> None:
        raise error

    return fail


@pytest.fixture
def interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Interrupted:
    return Interrupted(tmp_path, monkeypatch)


def test_an_upgrade_that_fails_leaves_links_as_they_were(interrupted: Interrupted) -> None:
    interrupted.at_restart = raising(ConfigError("no"))
    assert interrupted.upgrade() == 1
    assert interrupted.links() == (interrupted.old, None)
    before = interrupted.old.with_name("0")
    interrupted.previous.symlink_to(before)
    interrupted.at_restart = raising(ConfigError("no"))
    assert interrupted.upgrade() == 1
    assert interrupted.links() == (interrupted.old, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_upgrade_that_is_broken_off_is_put_back(
    interrupted: Interrupted, number: signal.Signals
) -> None:
    interrupted.at_restart = lambda: signal.raise_signal(number)
    # A shell that starts the tests in its background has this one ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted.upgrade()
    finally:
        signal.signal(signal.SIGINT, before)
    assert interrupted.links() == (interrupted.old, None)
    assert interrupted.commands[-1][1] == "try-restart", "the old version was not started again"


def test_an_upgrade_that_was_killed_has_a_way_back_and_is_taken_up_again(
    interrupted: Interrupted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(*_: object) -> None:
        raise RuntimeError("as kill -9 does")

    with monkeypatch.context() as patch:
        patch.setattr(system_upgrade, "_put_back", killed)
        interrupted.at_restart = raising(KeyboardInterrupt())
        with pytest.raises(RuntimeError, match="kill -9"):
            interrupted.upgrade()
    # The new one is installed, the old one serves on.
    assert [*interrupted.links()] == [interrupted.new, interrupted.old]
    interrupted.commands.clear()
    assert interrupted.upgrade() == 0
    assert [words[1] for words in interrupted.commands] == ["try-restart"]
    interrupted.served = "2"
    capsys.readouterr()
    assert interrupted.upgrade() == 0
    assert "nothing to do" in capsys.readouterr().out


def test_without_an_upgrade_there_is_nothing_to_go_back_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(system_upgrade, "PREVIOUS", tmp_path / "previous")
    assert main(["system", "rollback"]) == 2
    assert "no upgrade has left a version to go back to" in capsys.readouterr().err
    (tmp_path / "previous").symlink_to(tmp_path / "0.1")
    assert main(["system", "rollback", "--execute"]) == 2
    assert "install that version again" in capsys.readouterr().err
    monkeypatch.setattr(system_upgrade, "PROGRAM", tmp_path / "current")
    assert main(["system", "upgrade"]) == 2
    assert "no version is installed yet" in capsys.readouterr().err
