"""The folder that a box boots from: an operating system without an appliance.

It has this machine's `/usr`, read-only, an `/etc` of a few files and this machine's list of packages.
The Python libraries under test come from the environment of the tests, in /opt/packages.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path
from typing import NoReturn

import pytest

PACKAGES = Path("/opt/packages")
PROGRAMS = ("systemd-nspawn", "nsenter", "unshare", "timeout", "mount", "dpkg-deb", "strip")
LOCAL = "srv/local/bin"
FOLDERS = (
    "dev",
    "proc",
    "sys",
    "run",
    "tmp",
    "root",
    "home",
    "usr",
    "var/log",
    "srv/models",
    LOCAL,
)
MERGED = ("bin", "sbin", "lib", "lib64")
FROM_ETC = ("passwd", "group", "nsswitch.conf", "ld.so.cache", "ld.so.conf", "os-release")
DPKG = Path("/var/lib/dpkg")

MASKED = (
    "systemd-logind.service",
    "dbus.service",
    "dbus.socket",
    "console-getty.service",
    "getty.target",
    "systemd-networkd.service",
    "systemd-resolved.service",
    "systemd-timesyncd.service",
)


REQUIRED = "APPLIANCE_TESTS_REQUIRE_BOX"
"""Set where a box that cannot be booted is a failure and not a skip: in CI."""


def not_here(reason: str) -> NoReturn:
    """End a test that this machine cannot run, as a skip; as a failure where boxes are required."""
    if os.environ.get(REQUIRED):
        pytest.fail(reason)
    pytest.skip(reason)


def why_not() -> str | None:
    """What this machine lacks to boot a box; None when it can be tried."""
    if os.geteuid() != 0:
        return "booting a systemd needs root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or not DPKG.is_dir():
        return f"{', '.join(missing) or DPKG} not found (Debian: apt-get install systemd-container)"
    if not all(Path("/", name).is_symlink() for name in MERGED if Path("/", name).exists()):
        return "/bin is not in /usr here"
    return None


def make_root(root: Path) -> None:
    """Everything but what `mounts` brings."""
    for name in (*FOLDERS, PACKAGES.relative_to("/")):
        (root / name).mkdir(parents=True)
    for name in MERGED:
        (root / name).symlink_to(f"usr/{name}")
    etc = root / "etc"
    (etc / "systemd/system").mkdir(parents=True)
    for name in FROM_ETC:
        if Path("/etc", name).exists():
            shutil.copyfile(Path("/etc", name), etc / name)
    if Path("/etc/ld.so.conf.d").is_dir():
        shutil.copytree("/etc/ld.so.conf.d", etc / "ld.so.conf.d")
    (etc / "machine-id").write_text("5bc3a1d3c1b94e2f8f2d0a7b6c5d4e3f\n")
    (etc / "hostname").write_text("box\n")
    (etc / "fstab").touch()
    units = etc / "systemd/system"
    (units / "default.target").symlink_to("/usr/lib/systemd/system/multi-user.target")
    for name in MASKED:
        (units / name).symlink_to("/dev/null")
    # Which packages the /usr is made of: dependencies are met, or not, as on this machine.
    ignored = shutil.ignore_patterns("*.md5sums", "*.symbols", "*.shlibs", "*.templates", "*-old")
    shutil.copytree(DPKG, root / DPKG.relative_to("/"), ignore=ignored)


def mounts(root: Path) -> list[str]:
    """Shell commands that mount what is not in the folder itself."""
    return [
        _mount(Path("/usr"), root / "usr"),
        # An installation puts a link there.
        f"mount --bind {root}/{Path(LOCAL).parent} {root}/usr/local",
        _mount(Path(sysconfig.get_path("purelib")), root / PACKAGES.relative_to("/")),
    ]


def _mount(source: Path, target: Path) -> str:
    return f"mount --bind {source} {target} && mount -o remount,bind,ro {target}"
