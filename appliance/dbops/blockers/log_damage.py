"""Damage in the words of a server's log. Pure.

PostgreSQL names a damaged page by its file, a damaged index by its name (storage/buffer/bufmgr.c,
storage/smgr/md.c, access/nbtree). The words are those of `lc_messages = C`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PAGE = re.compile(
    r"block (?P<block>\d+) (?:of relation|in file) \"?"
    r"(?:base/(?P<database>\d+)/|global/|pg_tblspc/(?P<space>\d+)/[^/\s]+/(?P<space_database>\d+)/)"
    r"(?P<file>\d+)"
)
_INDEX = re.compile(
    r"index \"(?P<name>[^\"]+)\" contains (?:unexpected zero page|corrupted page)"
    r" at block (?P<block>\d+)"
)
_OTHER_INDEX = re.compile(
    r"ERROR:.*(?:right sibling|left link|left sibling|re-find parent key|half-dead).*"
    r"index \"(?P<name>[^\"]+)\""
)
_SEVERITY = r"\w+:  "
_ESCAPE = re.compile(r"(%-?\d*[a-zA-Z%])|([^%]+)")
MESSAGE_CHARACTERS_MAX = 200
DEFAULT_SPACE, GLOBAL_SPACE = 0, 1664
"""Tablespaces as `pg_filenode_relation` wants them: 0 is the database's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedDamage:
    """A page of a file (`database_oid` 0: of a shared catalog), or an index by its name anywhere.

    `database` is the session's name for it where the line's prefix has one; cut short where it is odd.
    """

    database: str | None
    database_oid: int | None
    space_oid: int
    file: int | None
    index: str | None
    block: int | None
    message: str


def damage_in_log(text: str, line_prefix: str = "") -> tuple[LoggedDamage, ...]:
    """Every damaged page and index that a log tells of, each once, in its newest words.

    `line_prefix` is the server's `log_line_prefix`.
    """
    begin = _begin_of_lines(line_prefix)
    found: dict[tuple[object, ...], LoggedDamage] = {}
    for line in text.splitlines():
        damage = _of_line(line, begin)
        if damage is not None:
            place = (damage.database_oid, damage.space_oid, damage.file, damage.block)
            key = (*place, damage.index, damage.index and damage.database)
            found[key] = damage
    return tuple(found.values())


def _begin_of_lines(line_prefix: str) -> re.Pattern[str] | None:
    """What a session's lines begin with, `database` in it; None where the prefix has none."""
    pattern = ""
    for escape, plain in _ESCAPE.findall(line_prefix):
        match escape[-1:]:
            case "":
                pattern += re.escape(plain)
            case "q":
                pass
            case "d":
                pattern += "(?P<database>.+?)" if "database" not in pattern else ".+?"
            case _:
                pattern += ".*?"
    return re.compile(pattern + _SEVERITY) if "database" in pattern else None


def _of_line(line: str, begin: re.Pattern[str] | None) -> LoggedDamage | None:
    message = line[:MESSAGE_CHARACTERS_MAX]
    prefix = None if begin is None else begin.match(line)
    database_name = None if prefix is None else prefix["database"].strip()
    page = _PAGE.search(line)
    if page is not None:
        database = page["database"] or page["space_database"]
        return LoggedDamage(
            database=database_name,
            database_oid=int(database or 0),
            space_oid=int(page["space"] or (DEFAULT_SPACE if database else GLOBAL_SPACE)),
            file=int(page["file"]),
            index=None,
            block=int(page["block"]),
            message=message,
        )
    index = _INDEX.search(line) or _OTHER_INDEX.search(line)
    if index is None:
        return None
    block = index.groupdict().get("block")
    return LoggedDamage(
        database=database_name,
        database_oid=None,
        space_oid=DEFAULT_SPACE,
        file=None,
        index=index["name"],
        block=None if block is None else int(block),
        message=message,
    )
