"""What a path holds, and what is said of a path that holds something else."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from appliance.errors import ConfigError
from appliance.prompt.bundle_folder import read_bundle, read_bundles
from appliance.prompt.path_kind import PathKind, path_kind
from appliance.server.main import PROMPTS_DIR
from tests.card_fixtures import encoded, v2

TEMPLATE = "name: t\n---\n- {name: history, zone: history}\n"
CARD = "cards are imported on the page"


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("a.yaml", "id: a\nname: A\n", PathKind.CHARACTER),
        ("a.yaml", "---\nid: a\nname: A\n", PathKind.CHARACTER),
        ("a.yaml", '{"id": "a", "name": "A"}', PathKind.CHARACTER),
        # An id that was forgotten is what is wrong with it.
        ("a.yaml", "name: A\n", PathKind.CHARACTER),
        ("a.yaml", TEMPLATE, PathKind.TEMPLATE),
        ("a.yaml", "# id: x\n\n" + TEMPLATE, PathKind.TEMPLATE),
        ("a.yaml", "- {name: who, role: system, content: x}\n", PathKind.TEMPLATE),
        ("a.yaml.j2", "id: {{ x }}\n", PathKind.WHOLE_FILE),
    ],
)
def test_a_file_is_known_by_its_text(tmp_path: Path, name: str, text: str, kind: PathKind) -> None:
    (tmp_path / name).write_text(text)
    assert path_kind(tmp_path / name) is kind


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.yaml", b"", "the file is empty"),
        ("a.yaml.j2", b" \n", "the file is empty"),
        ("a.png", b"\x89PNG\r\n\x1a\n", f"an image; {CARD}"),
        ("a.yaml", b"\xff\xd8\xff\xe0", f"an image; {CARD}"),
        ("card.json", encoded(v2(name="A")), "JSON, so neither a character's file nor a template"),
        ("a.yaml", encoded(v2(name="A")), CARD),
        ("a.yaml", "id: a".encode("utf-16"), "not UTF-8, so neither a character nor a template"),
        ("gone.yaml", None, "there is no such file or folder"),
    ],
)
def test_what_is_neither_is_named(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    for read in (path_kind, read_bundle):
        with pytest.raises(ConfigError) as caught:
            read(tmp_path / name)
        assert caught.value.message.startswith(f"{tmp_path / name}: ")
        assert said in caught.value.message


def test_archives_folders_and_devices_are_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.charx", "w") as archive:
        archive.writestr("card.json", encoded(v2(name="A")))
    with pytest.raises(ConfigError, match=f"an archive; {CARD}"):
        path_kind(tmp_path / "a.charx")
    with pytest.raises(ConfigError, match="no regular file"):
        path_kind(Path("/dev/null"))
    assert path_kind(PROMPTS_DIR) is PathKind.FOLDER
    with pytest.raises(ConfigError, match=r"a folder of characters; name one of them: .*assistant"):
        read_bundle(PROMPTS_DIR)
    (tmp_path / "notes").mkdir()
    with pytest.raises(
        ConfigError, match=r"notes: there are no characters here: neither NAME\.yaml"
    ):
        read_bundle(tmp_path / "notes")


def test_a_template_among_characters_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "mood.yaml").write_text(TEMPLATE)
    with pytest.raises(ConfigError, match=r"mood\.yaml: a template; a character's file or folder"):
        read_bundles(tmp_path)


def test_a_large_file_without_a_separator_is_looked_at_in_no_time(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("x y\n" * 100_000)
    assert path_kind(tmp_path / "a.yaml") is PathKind.CHARACTER
