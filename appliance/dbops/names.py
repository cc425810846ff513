"""Names as a server's catalogs hold them: bytes, which need not be UTF-8. Pure."""

from __future__ import annotations


def name_of(raw: bytes) -> str:
    """The name, or what can be shown of one that is no UTF-8: `caf\\xe9`."""
    return raw.decode("utf-8", "backslashreplace")


def name_or_none(raw: bytes | None) -> str | None:
    """The same of what may have none."""
    return None if raw is None else name_of(raw)


def can_be_entered(*raw: bytes) -> bool:
    """Whether names can stand in a statement or at a login, which are UTF-8 here."""
    try:
        b".".join(raw).decode()
    except UnicodeDecodeError:
        return False
    return True
