"""How an operator reaches a database: what is shown of an address, and what is refused of it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from appliance.dbops.target import Target
from appliance.errors import ConfigError, DatabaseError, NotRunning


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://anna:secret@db.example:6000/chats", "db.example:6000/chats"),
        ("postgresql:///chats", "localhost/chats"),
        ("postgres://[::1]/x", "::1/x"),
    ],
)
def test_an_address_is_shown_without_its_user_and_password(url: str, shown: str) -> None:
    assert str(Target(url=url)) == shown


@pytest.mark.parametrize("url", ["", "mysql://x/y", "postgresql://h:port/x", "postgresql://[::1"])
def test_what_is_no_address_is_refused_before_anything_is_asked(url: str) -> None:
    with pytest.raises(ConfigError, match="URL"):
        Target(url=url)


async def test_where_nobody_answers_the_place_is_named_and_not_the_password(tmp_path: Path) -> None:
    with pytest.raises(NotRunning, match=f"at {tmp_path}: .* db start --data-dir {tmp_path}$"):
        await Target(directory=tmp_path).connect()
    with pytest.raises(DatabaseError, match="does not exist"):
        await Target(directory=tmp_path / "none").connect()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(NotRunning, match=f"127.0.0.1:{port}/x") as refused:
        await Target(url=f"postgresql://u:secret@127.0.0.1:{port}/x").connect()
    assert "secret" not in refused.value.message
