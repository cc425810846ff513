"""Who may reach a file, and where on the way to it they are stopped. Reads modes; changes nothing.

A path fails at one component of it (a parent that may not be entered, as /home/ann with mode 0700), and
that component is what a person has to mend, not the path.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import ConfigError

READ, WRITE, ENTER = os.R_OK, os.W_OK, os.X_OK
LINKS_MAX = 40
"""Of a path, path_resolution(7)."""

_LETTERS = ((READ, "r"), (WRITE, "w"), (ENTER, "x"))

HIDDEN_BY_A_SERVICE = ("/home", "/root", "/run/user")
"""What `ProtectHome=yes` makes inaccessible, systemd.exec(5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """A user with its groups; `is_self`: this process, about which the kernel itself is asked."""

    name: str
    uid: int
    gids: frozenset[int]
    is_self: bool = False

    def __str__(self) -> str:
        groups = ", ".join(str(gid) for gid in sorted(self.gids))
        return f"{self.name} (uid {self.uid}, gid {groups})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The component of a path at which its user is stopped; `wanted`: some of `rwx`."""

    component: Path
    wanted: str
    cause: str


def myself() -> Who:
    """This process's effective user."""
    uid = os.geteuid()
    gids = frozenset({os.getegid(), *os.getgroups()})
    return Who(name=_name(uid), uid=uid, gids=gids, is_self=True)


def not_allowed(path: Path | str | None) -> str:
    """That this process's user may not use a path (None: it is not known), and what to do about it."""
    place = "something that it needs" if path is None else path
    who = myself()
    told = f"{place}: permission denied for {who.name} (uid {who.uid})"
    return told if os.geteuid() == 0 else f"{told}: run this as root (sudo)"


def user(name: str) -> Who | None:
    """A user of this machine by name, with all its groups; None when there is none."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    gids = frozenset(os.getgrouplist(name, entry.pw_gid))
    return Who(name=name, uid=entry.pw_uid, gids=gids)


def stopped_at(path: Path, who: Who, wanted: int) -> Stopped | None:
    """Where `who` is stopped on the way to `path`, which it wants to use as `wanted` says.

    The path as written comes first, then what its links lead to. Access lists (acl(5)) are seen only for
    this process itself.
    """
    for place in _places(path):
        found = _walk(place, who, wanted)
        if found is not None:
            return found
    return None


def hidden_at(path: Path) -> Path | None:
    """Where a path, or a place that its links lead to, lies in a home; None where none of them does."""
    return next((place for place in _places(path) if _is_in_home(place)), None)


def no_home(place: Path) -> str:
    """What is wrong with a place in a home."""
    return (
        f"lies in a home ({place}), and a service does not see homes (ProtectHome=): keep it in /srv, "
        "/opt or /var/lib, or give it to the unit with BindReadOnlyPaths="
    )


def check_access(setting: str, path: Path, wanted: int) -> None:
    """Raise ConfigError, with what would mend it, when this process may not use a setting's path."""
    who = myself()
    stopped = stopped_at(path, who, wanted)
    if stopped is not None:
        raise ConfigError(f"{setting}: {told(path, stopped, who)}; {advice(stopped)}")


def told(path: Path, stopped: Stopped, who: Who) -> str:
    """One clause that names path, component, user and wanted access."""
    at = "" if stopped.component == path else f" at {stopped.component}"
    return f"{path}: {who} is stopped{at} ({stopped.cause}; wanted: {stopped.wanted})"


def advice(stopped: Stopped) -> str:
    """What to do about it, for a person who runs this under systemd."""
    component = stopped.component
    if _is_in_home(component):
        return f"it {no_home(component)}"
    if stopped.cause == os.strerror(errno.EROFS):
        return f"allow the unit to write there: ReadWritePaths={component}"
    if stopped.cause == os.strerror(errno.ENOENT):
        return "make it: systemd-tmpfiles --create appliance.conf makes those of an installed appliance"
    return (
        f"open it (chmod o+{stopped.wanted} {component}), or put the user into its group "
        "(SupplementaryGroups= in the unit)"
    )


def _is_in_home(place: Path) -> bool:
    return any(place.is_relative_to(home) for home in HIDDEN_BY_A_SERVICE)


def _places(path: Path) -> Iterator[Path]:
    """The path as it is written, and as it reads with its first link followed, then the next …"""
    # Absolute without following links, which `Path.absolute` leaves as they are.
    place = path.absolute()
    for _ in range(LINKS_MAX):
        yield place
        for component in (*reversed(place.parents), place):
            if os.path.islink(component):
                leads_to = component.parent / os.readlink(component)
                place = Path(os.path.normpath(leads_to / place.relative_to(component)))
                break
        else:
            return


def _walk(path: Path, who: Who, wanted: int) -> Stopped | None:
    for component in (*reversed(path.parents), path):
        needed = wanted if component == path else ENTER
        cause = _refusal(component, who, needed)
        if cause is not None:
            letters = "".join(letter for bit, letter in _LETTERS if needed & bit)
            return Stopped(component=component, wanted=letters, cause=cause)
    return None


def _refusal(component: Path, who: Who, needed: int) -> str | None:
    try:
        status = component.stat()
    except OSError as error:
        return error.strerror or type(error).__name__
    if who.is_self:
        if os.access(component, needed, effective_ids=True):
            return None
        read_only = needed & WRITE and os.statvfs(component).f_flag & os.ST_RDONLY
        return os.strerror(errno.EROFS if read_only else errno.EACCES)
    return None if _mode_allows(status, who, needed) else os.strerror(errno.EACCES)


def _mode_allows(status: os.stat_result, who: Who, needed: int) -> bool:
    """The kernel's rule without capabilities and access lists: the first class that fits decides."""
    if who.uid == 0:
        return True
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid == who.uid:
        mode >>= 6
    elif status.st_gid in who.gids:
        mode >>= 3
    return mode & needed == needed


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "nobody known"
