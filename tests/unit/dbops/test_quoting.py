"""What is printed to be pasted does what it says, whatever a stranger called a table."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from appliance.dbops.quoting import identifier, single_user_command


@pytest.mark.parametrize(
    "name", ["plain", "x'; touch pwned; echo '", "$(touch pwned)", "`touch pwned`", "a b", "%s\\n"]
)
def test_a_command_for_single_user_mode_gives_the_statement_and_runs_nothing_else(
    tmp_path: Path, name: str
) -> None:
    server = tmp_path / "postgres"
    server.write_text('#!/bin/sh\ncat > stdin\nprintf "%s|" "$@" > arguments\n', encoding="utf-8")
    server.chmod(0o700)
    statement = f"DROP TABLE {identifier('pg_temp_3', name)}"
    command = single_user_command(statement, folder="a folder", database=name)
    assert command is not None
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "stdin").read_text(encoding="utf-8") == statement + "\n"
    given = (tmp_path / "arguments").read_text(encoding="utf-8")
    assert given == f"--single|-D|a folder|{name}|"
    assert not (tmp_path / "pwned").exists()


def test_a_name_with_a_line_break_gets_no_command() -> None:
    for table, database in (("a\nDROP TABLE b", "d"), ("a", "d\nDROP TABLE b")):
        statement = f"DROP TABLE {identifier(table)}"
        assert single_user_command(statement, folder="f", database=database) is None
