"""What `appliance system` would do: from what is wanted and what is found to a list of steps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.cli.system_files import (
    POSTGRES_UNIT,
    SERVER_UNIT,
    UNITS,
    USER,
    File,
    Link,
    Wanted,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What lies at a path: a file's text, mode and `user:group`, or where a link points.

    `owner` is None in a tree whose users are another system's.
    """

    text: str | None = None
    mode: int = 0
    owner: str | None = None
    target: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Write a file, or a link, whole."""

    wanted: Wanted
    cause: str

    def __str__(self) -> str:
        wanted = self.wanted
        if isinstance(wanted, Link):
            return f"link    {wanted.path} -> {wanted.target} ({self.cause})"
        return f"write   {wanted.path} {wanted.mode:04o} {wanted.owner.value} ({self.cause})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """Give a file that is kept its owner and mode."""

    wanted: File

    def __str__(self) -> str:
        return f"own     {self.wanted.path} {self.wanted.mode:04o} {self.wanted.owner.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """Remove one file or link, or with `is_tree` a folder and all in it."""

    path: Path
    is_tree: bool = False

    def __str__(self) -> str:
        return f"{'DELETE ' if self.is_tree else 'remove '} {self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Run a program of the system; `why` says what it makes or ends."""

    words: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        return f"run     {' '.join(self.words)} ({self.why})"


Step = Write | Own | Remove | Command


def plan_install(
    accounts: Sequence[Wanted],
    files: Sequence[Wanted],
    found: Mapping[Path, Found],
    extra: Iterable[Path],
    *,
    running: Iterable[str],
    has_user: bool,
    folders_missing: Sequence[Path],
    start: bool,
) -> tuple[Step, ...]:
    """The steps that are missing, in order; none when all is as it should be.

    `extra`: files and links of an earlier installation that this one does not want; `running`: units
    without such a file that run all the same.
    """
    extra = sorted(extra)
    steps: list[Step] = [*_writes(accounts, found)]
    if not has_user:
        words = ("systemd-sysusers", "/etc/sysusers.d/appliance.conf")
        steps.append(Command(words=words, why=f"makes the user and group {USER}"))
    if folders_missing:
        create = ("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/appliance.conf")
        steps.append(Command(words=create, why="makes " + ", ".join(map(str, folders_missing))))
    steps += _stops(extra, running)
    changes = [*_writes(files, found), *(Remove(path=path) for path in extra)]
    steps += changes
    if any(_touches_units(step) for step in changes):
        steps.append(Command(words=("systemctl", "daemon-reload"), why="units changed"))
    if start:
        command = ("systemctl", "start", "appliance.target")
        steps.append(Command(words=command, why="starts every process that is not running"))
    return tuple(steps)


def plan_uninstall(
    installed: Iterable[Path], deleted: Iterable[Path], *, is_running: bool
) -> tuple[Step, ...]:
    """The steps that take the appliance away; data stays but for the folders in `deleted`."""
    paths = sorted(installed)
    steps: list[Step] = []
    if is_running:
        # Each part by name: `stop` waits for what it names alone, and data is deleted next.
        units = [path.name.replace("@.", "@*.") for path in paths if path.parent == UNITS]
        words = ("systemctl", "stop", *units)
        steps.append(Command(words=words, why="ends every process in order"))
        steps.append(_forget(units))
    steps += [Remove(path=path) for path in paths]
    if any(path.is_relative_to(UNITS) for path in paths):
        steps.append(Command(words=("systemctl", "daemon-reload"), why="units are gone"))
    return (*steps, *(Remove(path=path, is_tree=True) for path in sorted(deleted)))


def _stops(extra: Iterable[Path], running: Iterable[str]) -> list[Step]:
    """Ends what is not part of the appliance any more: started again with it, it would end for ever."""
    kinds = (".service", ".socket", ".timer")
    units = {path.name for path in extra if path.suffix in kinds and "@." not in path.name}
    units |= set(running)
    if POSTGRES_UNIT in units:
        # Its turns would go to the journal, and from there into the other database.
        units.add(SERVER_UNIT)
    if not units:
        return []
    words = ("systemctl", "stop", *sorted(units))
    return [Command(words=words, why="the settings have no place for it"), _forget(sorted(units))]


def _forget(units: Sequence[str]) -> Command:
    """A failed unit is listed as one until it is reset, its file gone or not.

    systemctl(1) refuses to reset a unit that is not loaded, and a pattern that fits none is no fault.
    """
    words = ("systemctl", "reset-failed", *(f"{unit}*" for unit in units))
    return Command(words=words, why="what failed is not listed any more")


def _writes(wanted: Sequence[Wanted], found: Mapping[Path, Found]) -> list[Step]:
    steps: list[Step] = []
    for item in wanted:
        there = found.get(item.path)
        if there is None:
            steps.append(Write(wanted=item, cause="new"))
        elif isinstance(item, Link):
            if there.target != item.target:
                steps.append(Write(wanted=item, cause=f"was {there.target or 'a file'}"))
        elif there.text != item.text and not item.is_kept:
            steps.append(Write(wanted=item, cause="differs"))
        elif there.mode != item.mode or there.owner not in (None, item.owner.value):
            steps.append(Own(wanted=item))
    return steps


def _touches_units(step: Step) -> bool:
    path = step.path if isinstance(step, Remove) else None
    if isinstance(step, Write):
        path = step.wanted.path
    return path is not None and path.is_relative_to(UNITS)
