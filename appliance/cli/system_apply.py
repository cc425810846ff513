"""Looks at the system and carries out steps, below a root folder. Never: decides which.

With another root than `/` (a tree that becomes a package or an image) nothing outside it is touched and
no program runs: users, folders and services are then made by the system that boots it.
"""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import stat
import subprocess
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from appliance.cli.system_files import DROP_IN_HEAD, UNIT_HEAD, File, Link, Wanted
from appliance.cli.system_plan import Command, Found, Own, Remove, Step, Write
from appliance.durable import replace_file
from appliance.errors import ConfigError

ROOT = Path("/")
COMMAND_TIMEOUT_S = 900.0


def look(root: Path, wanted: Iterable[Wanted]) -> Mapping[Path, Found]:
    """What lies at the paths of `wanted`, where something lies.

    A file that is the operator's own may as well be a link to it.
    """
    found: dict[Path, Found] = {}
    for item in wanted:
        path = below(root, item.path)
        is_followed = isinstance(item, File) and item.is_kept
        target = None if is_followed else link_target(path)
        if target is not None:
            found[item.path] = Found(target=target)
        elif path.is_file():
            status = path.stat()
            found[item.path] = Found(
                text=path.read_text(encoding="utf-8", errors="replace"),
                mode=stat.S_IMODE(status.st_mode),
                owner=f"{_user(status.st_uid)}:{_group(status.st_gid)}" if root == ROOT else None,
            )
    return found


def link_target(path: Path) -> Path | None:
    """Where a link points; None where there is none."""
    try:
        return Path(os.readlink(path))
    except OSError:
        return None


def installed_units(root: Path, units: Path, shipped: Collection[str]) -> set[Path]:
    """Every unit, drop-in and link that an installation made in the folder `units`.

    `shipped`: the units of this version; those of another say themselves what they are. All else beside
    them is the operator's own.
    """
    folder = below(root, units)
    units_there = {path for path in folder.glob("appliance*") if path.is_file()}
    found = {path for path in units_there if path.name in shipped or _is_ours(path)}
    drop_ins = folder.glob("appliance*.d/*.conf")
    found |= {path for path in drop_ins if _text(path).startswith(f"{DROP_IN_HEAD} ")}
    others = {path.name for path in units_there - found}
    for path in folder.glob("*.wants/appliance*"):
        target = link_target(path)
        if target is not None and target.name not in others:
            found.add(path)
    return {ROOT / path.relative_to(root) for path in found}


def _is_ours(unit: Path) -> bool:
    return _text(unit).startswith(UNIT_HEAD.format(name=unit.name))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def carry_out(root: Path, step: Step) -> None:
    """Do one step. Raises OSError, or ConfigError with a program's own words when it fails."""
    if isinstance(step, Command):
        if root == ROOT:
            run(step.words)
    elif isinstance(step, Remove):
        _remove(root, step)
    elif isinstance(step, Own):
        _own(root, step)
    else:
        _write(root, step)


def run(words: tuple[str, ...]) -> str:
    """A system program's output. Raises ConfigError when it is missing or fails."""
    try:
        ended = subprocess.run(
            words, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
    except FileNotFoundError as error:
        raise ConfigError(
            f"{words[0]}: no such program: this needs systemd 247 or newer"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{' '.join(words)}: not done after {COMMAND_TIMEOUT_S:.0f} s") from error
    if ended.returncode != 0:
        said = (ended.stderr or ended.stdout).strip()
        raise ConfigError(f"{' '.join(words)}: {said or f'exit status {ended.returncode}'}")
    return ended.stdout


def tree(root: Path) -> Path:
    """The folder that is meant as the root; `ROOT` for this system, however it is written."""
    return ROOT if root.exists() and root.samefile(ROOT) else root.absolute()


def below(root: Path, path: Path) -> Path:
    """An absolute path inside `root`."""
    return root / path.relative_to("/")


def _write(root: Path, step: Write) -> None:
    path = below(root, step.wanted.path)
    # Only the folders above a file; data folders are made by systemd-tmpfiles with their owners.
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    if isinstance(step.wanted, Link):
        new = path.with_name(f".{path.name}.new")
        new.unlink(missing_ok=True)
        new.symlink_to(step.wanted.target)
        new.replace(path)
        return
    replace_file(
        path,
        step.wanted.text.encode(),
        mode=step.wanted.mode,
        owner=_ids(step.wanted.owner.value) if root == ROOT else None,
    )


def _own(root: Path, step: Own) -> None:
    wanted = step.wanted
    path = below(root, wanted.path)
    if root == ROOT:
        os.chown(path, *_ids(wanted.owner.value))
    path.chmod(wanted.mode)


def _ids(owner: str) -> tuple[int, int]:
    """The numbers of `user:group`."""
    user, _, group = owner.partition(":")
    return pwd.getpwnam(user).pw_uid, grp.getgrnam(group).gr_gid


def _remove(root: Path, step: Remove) -> None:
    path = below(root, step.path)
    if step.is_tree:
        if path.exists():
            shutil.rmtree(path)
        return
    path.unlink(missing_ok=True)
    if path.parent.name.startswith("appliance") and not any(path.parent.iterdir()):
        path.parent.rmdir()


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
