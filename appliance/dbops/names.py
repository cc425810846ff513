"""Names as a server's catalogs hold them: bytes, which need not be UTF-8. Pure."""

from __future__ import annotations

from typing import overload


@overload
def name_of(raw: bytes) -> str: ...
@overload
def name_of(raw: None) -> None: ...
def name_of(raw: bytes | None) -> str | None:
    """The name, or what can be shown of one that is no UTF-8: `caf\\xe9`."""
    return None if raw is None else raw.decode("utf-8", "backslashreplace")


def can_be_entered(*raw: bytes) -> bool:
    """Whether names can stand in a statement or at a login, which are UTF-8 here."""
    try:
        b".".join(raw).decode()
    except UnicodeDecodeError:
        return False
    return True
