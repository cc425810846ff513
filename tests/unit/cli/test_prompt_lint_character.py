"""`appliance prompt lint` of a character's folder: what its lorebook costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.cli.main import main

BOOK = '{"entries": [{"name": "deep", "keys": ["a"], "content": "@@depth 3\\nx"}]}'


@pytest.mark.parametrize(("placement", "warns"), [("as_written", True), ("frozen", False)])
def test_lore_that_moves_is_warned_of_with_its_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], placement: str, warns: bool
) -> None:
    folder = tmp_path / "keeper"
    folder.mkdir()
    character = f"id: keeper\nname: K\nsystem: x\nlore_placement: {placement}\n"
    (folder / "character.yaml").write_text(character)
    (folder / "lorebook.json").write_text(BOOK)
    assert main(["prompt", "lint", str(folder)]) == 0
    out, _ = capsys.readouterr()
    assert ("warning:" in out) == warns
    assert ("'deep' stands 3 messages deep" in out) == warns
    assert out.endswith("1 entries of lore\n")
