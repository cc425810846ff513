"""Bundles: what the version covers, the limits, and a folder that gives back what was written."""

from __future__ import annotations

import hashlib
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from appliance.errors import ConfigError, InvalidBundle, TemplateError
from appliance.prompt.bundle import BYTES_MAX, FILES_MAX, Bundle
from appliance.prompt.bundle_folder import read_bundle, read_bundles
from appliance.prompt.bundle_writing import plan_writing
from appliance.prompt.characters import CharacterVersion
from tests.characters import bundle_of, written
from tests.unit.prompt.template_files import HISTORY

FRONT = "name: mine\ninputs:\n  character: {type: map, scope: character}\n---\n"
PART = "- {name: who, zone: character, role: system, content: 'I am {{ character.name }}.'}\n"

GOLDEN = [
    (
        "a",
        {"character.yaml": b""},
        "deb1a2b5989e01a441d938067520d4512ffa6bf02c5e3b285a94b9b0c9acdc4f",
    ),
    (
        "mara",
        {
            "templates/mine.yaml": "é{{ x }}\n".encode(),
            "character.yaml": b"id: mara\nname: Mara\n",
            "avatar.png": bytes(range(256)),
        },
        "b0d7b0e08fe55f6d42be220024d380d3ec0467e52855d538a7fe0d59b01b3196",
    ),
]


def framed(*pieces: bytes) -> str:
    """The canonical form written out by hand, hashed."""
    form = b"".join(len(piece).to_bytes(8, "little") + piece for piece in pieces)
    return hashlib.sha256(form).hexdigest()


def test_the_version_is_the_hash_of_name_and_files_each_behind_its_length() -> None:
    bundle = Bundle(name="mara", files={"templates/é.yaml": b"\x00", "character.yaml": b"id: mara"})
    assert list(bundle.files) == ["character.yaml", "templates/é.yaml"]
    form = (b"mara", b"character.yaml", b"id: mara", "templates/é.yaml".encode(), b"\x00")
    assert bundle.version == framed(*form)


@pytest.mark.parametrize(("name", "files", "version"), GOLDEN)
def test_versions_stay_what_they_were_when_conversations_were_pinned_to_them(
    name: str, files: dict[str, bytes], version: str
) -> None:
    assert Bundle(name=name, files=files).version == version


def test_no_byte_moves_between_a_name_a_path_and_a_content_without_another_version() -> None:
    files = [
        ("ab", {"c": b"d"}),
        ("a", {"bc": b"d"}),
        ("a", {"b": b"cd"}),
        ("a", {"b": b"c", "d": b""}),
        ("a", {"b": b"", "c": b"d"}),
        ("a", {"b": b"d", "c": b""}),
    ]
    assert len({Bundle(name=name, files=held).version for name, held in files}) == len(files)


def test_a_bundle_is_a_value_that_nobody_can_change() -> None:
    held = {"a": b"1"}
    bundle = Bundle(name="x", files=held)
    held["a"] = b"2"
    assert bundle.files["a"] == b"1"
    with pytest.raises(TypeError):
        bundle.files["a"] = b"3"  # type: ignore[index]
    assert bundle == Bundle(name="x", files={"a": b"1"})


@pytest.mark.parametrize(
    ("name", "files", "said"),
    [
        ("Mara", {"a": b""}, "'Mara' is not 1 to 64"),
        ("m/x", {"a": b""}, "is not 1 to 64"),
        ("m", {}, "m: there are no files"),
        ("m", {str(n): b"" for n in range(FILES_MAX + 1)}, f"65 files, at most {FILES_MAX}"),
        ("m", {"big": bytes(BYTES_MAX + 1)}, f"{BYTES_MAX + 1} bytes in all files, at most"),
        ("m", {"p" * 201: b""}, "longer than 200 bytes"),
        *(
            ("m", {path: b""}, "is no path of a file")
            for path in (
                "",
                ".git/config",
                "a/.x",
                "/etc/x",
                "../x",
                "a//b",
                "a/./b",
                "a\\b",
                "C:x",
                "a\nb",
                "\udc80",
            )
        ),
    ],
)
def test_what_is_no_bundle_is_refused_with_the_name_and_the_limit(
    name: str, files: dict[str, bytes], said: str
) -> None:
    with pytest.raises(InvalidBundle) as caught:
        Bundle(name=name, files=files)
    assert said in caught.value.message


def test_a_character_and_its_template_with_includes_come_from_the_bundle_alone() -> None:
    templates = {"mine": FRONT + "- include: more/who.yaml\n" + HISTORY, "more/who": PART}
    made = CharacterVersion.of(bundle_of("mara", templates=templates, template="mine"))
    assert made.version == bundle_of("mara", templates=templates, template="mine").version
    assert [part.name for part in made.template.before] == ["who"]


@pytest.mark.parametrize(
    ("fields", "templates", "said"),
    [
        ({"template": "other"}, {}, "mara/character.yaml: template: there is no 'other'"),
        ({"id": "mira"}, {}, "mara/character.yaml: id: 'mira' is not 'mara'"),
        (
            {"template": "mine"},
            {"mine": FRONT + "- include: gone.yaml\n" + HISTORY},
            "mara/templates/mine.yaml, line 5: template error: include: 'gone.yaml' is not in",
        ),
        (
            {"template": "mine"},
            {"mine": FRONT + "- include: ../character.yaml\n" + HISTORY},
            "'../character.yaml' is not in the template's folder",
        ),
        (
            {"template": "mine"},
            {"mine": FRONT + "- include: a.yaml\n" + HISTORY, "a": "- include: ./a.yaml\n"},
            "'a.yaml' is included within itself",
        ),
        (
            {"template": "mine"},
            {
                "mine": FRONT.replace("}", "}\n  sky: {scope: turn, sample: fair}")
                + PART.replace("character.name", "sky")
                + HISTORY
            },
            "may change with every turn",
        ),
    ],
)
def test_a_bundle_that_makes_no_prompt_is_refused_with_file_and_field(
    fields: dict[str, str], templates: dict[str, str], said: str
) -> None:
    with pytest.raises((InvalidBundle, TemplateError)) as caught:
        CharacterVersion.of(bundle_of("mara", templates=templates, **fields))
    assert said in caught.value.message


def test_a_file_and_its_templates_become_one_bundle_and_nothing_else_of_the_folder(
    tmp_path: Path,
) -> None:
    (tmp_path / "mara.yaml").write_text("id: mara\nname: Mara\ntemplate: mine\n")
    (tmp_path / "templates" / "more").mkdir(parents=True)
    (tmp_path / "templates" / "mine.yaml").write_text(
        FRONT + "- include: more/who.yaml\n" + HISTORY
    )
    (tmp_path / "templates" / "more" / "who.yaml").write_text(PART)
    (tmp_path / "templates" / "unused.yaml").write_text("x")
    bundle = read_bundle(tmp_path / "mara.yaml")
    assert list(bundle.files) == [
        "character.yaml",
        "templates/mine.yaml",
        "templates/more/who.yaml",
    ]
    assert CharacterVersion.of(bundle).template.before[0].name == "who"


def test_what_is_written_to_a_folder_is_read_back_the_same(tmp_path: Path) -> None:
    plain = bundle_of("ada", system="é\r\n{{ x }}")
    rich = Bundle(name="mara", files={**bundle_of("mara").files, "art/avatar.png": b"\x89PNG\x00"})
    assert written(tmp_path, plain).place == tmp_path / "ada.yaml"
    assert written(tmp_path, rich).place == tmp_path / "mara"
    assert [bundle for _, bundle in read_bundles(tmp_path)] == [plain, rich]
    fewer = Bundle(name="mara", files={**bundle_of("mara").files, "note.txt": b"."})
    written(tmp_path, fewer, rich)
    assert [bundle for _, bundle in read_bundles(tmp_path)] == [plain, fewer]


def test_a_cards_folder_is_named_like_its_character_and_read_back_the_same(tmp_path: Path) -> None:
    card = Bundle(name="mara", files={"card.json": b"{}", "avatar.png": b"\x89PNG"})
    assert written(tmp_path, card).place == tmp_path / "mara"
    assert [bundle for _, bundle in read_bundles(tmp_path)] == [card]


def test_writing_never_leaves_a_character_twice_nor_clears_a_folder_of_something_else(
    tmp_path: Path,
) -> None:
    rich = Bundle(name="mara", files={**bundle_of("mara").files, "note.txt": b"."})
    written(tmp_path, bundle_of("mara"))
    with pytest.raises(ConfigError, match=r"mara\.yaml: it would be there beside"):
        plan_writing(tmp_path, rich, ())
    (tmp_path / "mara.yaml").unlink()
    (tmp_path / "mara").mkdir()
    (tmp_path / "mara" / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is no character's folder"):
        plan_writing(tmp_path, rich, ())
    assert (tmp_path / "mara" / "thesis.txt").read_text() == "mine"


def test_a_link_out_of_a_characters_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("key")
    folder = tmp_path / "mara"
    folder.mkdir()
    (folder / "character.yaml").write_text("id: mara\nname: Mara\n")
    (folder / "note.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(ConfigError, match="leads out of its folder"):
        read_bundle(folder)


def test_a_folder_with_too_much_is_refused_while_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "character.yaml").write_text("id: mara\nname: Mara\n")
    for number in range(FILES_MAX):
        (tmp_path / f"{number}.txt").write_text(".")
    with pytest.raises(ConfigError, match=f"more than {FILES_MAX} files"):
        read_bundle(tmp_path)


_PARTS = st.text("ab.é ", min_size=1, max_size=4).filter(
    lambda part: not part.startswith(".") and part.strip() == part
)
_FILES = st.dictionaries(
    st.lists(_PARTS, min_size=1, max_size=3).map("/".join), st.binary(max_size=20), max_size=5
)


@settings(max_examples=25, deadline=None)
@given(files=_FILES, others=_FILES)
def test_versions_are_equal_exactly_where_files_are_and_folders_give_them_back(
    files: dict[str, bytes], others: dict[str, bytes]
) -> None:
    paths = [*files, *others]
    assume(not any(a != b and b.startswith(a + "/") for a in paths for b in paths))
    who = {"character.yaml": b"id: mara\nname: Mara\n"}
    first = Bundle(name="mara", files={**files, **who})
    second = Bundle(name="mara", files={**others, **who})
    assert (first.version == second.version) == (first.files == second.files)
    pieces = [piece for path, content in first.files.items() for piece in (path.encode(), content)]
    assert first.version == framed(b"mara", *pieces)
    with TemporaryDirectory() as folder:
        for bundle in (first, second):
            if len({len(first.files) == 1, len(second.files) == 1}) == 2:
                (Path(folder) / "mara.yaml").unlink(missing_ok=True)
                rmtree(Path(folder) / "mara", ignore_errors=True)
            written(Path(folder), bundle, first, second)
            assert [found for _, found in read_bundles(Path(folder))] == [bundle]
