"""Bundles on disk and in archives: a file that is a folder too, links, images of fill bytes alone."""

from __future__ import annotations

import io
import time
import zipfile
from pathlib import Path

import pytest

from appliance.errors import ConfigError, InvalidBundle, InvalidCard
from appliance.prompt.bundle import CHARACTER_FILE, Bundle
from appliance.prompt.bundle_folder import read_bundle, write_bundle
from appliance.prompt.cards.charx import read_charx
from appliance.prompt.cards.image import read_image
from tests.card_fixtures import encoded, v3
from tests.characters import bundle_of

FRAME = b"\xff\xc0\x00\x11\x08\x00\x20\x00\x30\x03" + bytes(9)
"""48 x 32."""


@pytest.mark.parametrize("path", ["notes/a.txt", "notes/deep/er/a.txt"])
def test_a_file_that_is_a_folder_of_another_is_refused_by_name(path: str) -> None:
    files = {CHARACTER_FILE: b"x", "notes": b"x", path: b"x"}
    with pytest.raises(InvalidBundle, match=f"'notes' is a file, and a folder of '{path}'"):
        Bundle(name="mira", files=files)
    Bundle(name="mira", files={CHARACTER_FILE: b"x", "notes.d": b"x", "notes/a": b"x"})


def test_a_charx_with_such_files_is_refused_by_name() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("card.json", encoded(v3(name="M")))
        archive.writestr("assets/a", b"x")
        archive.writestr("assets/a/b", b"x")
    with pytest.raises(InvalidCard, match="'assets/a' is a file, and a folder of 'assets/a/b'"):
        read_charx(packed.getvalue())


def several(name: str = "mira") -> Bundle:
    one = bundle_of(name, system="New.")
    return Bundle(name=name, files={**one.files, "templates/more/x.yaml": b"new"})


def test_a_link_in_the_place_of_a_file_is_refused_and_what_it_leads_to_is_kept(
    tmp_path: Path,
) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "prompts"
    outside.mkdir()
    inside.mkdir()
    (outside / "secret").write_text("kept")
    (inside / "mira.yaml").symlink_to(outside / "secret")
    with pytest.raises(ConfigError, match=r"mira\.yaml: it is a link"):
        write_bundle(inside, bundle_of("mira", system="New."))
    (inside / "mira.yaml").unlink()
    (inside / "mira.yaml").symlink_to(outside / "nothing")
    with pytest.raises(ConfigError, match="link"):
        write_bundle(inside, bundle_of("mira", system="New."))
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == "kept"


@pytest.mark.parametrize("linked", ["mira", "mira/templates", "mira/templates/more"])
def test_a_link_in_the_place_of_a_folder_is_refused(tmp_path: Path, linked: str) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "prompts"
    outside.mkdir()
    inside.mkdir()
    (outside / CHARACTER_FILE).write_bytes(bundle_of("mira").files[CHARACTER_FILE])
    place = inside / linked
    place.parent.mkdir(parents=True, exist_ok=True)
    if linked != "mira":
        (inside / "mira" / CHARACTER_FILE).write_bytes(bundle_of("mira").files[CHARACTER_FILE])
    place.symlink_to(outside, target_is_directory=True)
    with pytest.raises(ConfigError, match="link"):
        write_bundle(inside, several())
    assert [path.name for path in outside.iterdir()] == [CHARACTER_FILE]


def test_a_bundle_that_is_written_is_read_again_and_over_an_older_one(tmp_path: Path) -> None:
    for bundle in (several(), Bundle(name="mira", files={**several().files, "z/y": b"1"})):
        place = write_bundle(tmp_path, bundle)
        assert read_bundle(place) == bundle
    assert read_bundle(write_bundle(tmp_path, several())) == several()
    assert not (tmp_path / "mira" / "z" / "y").exists()


def test_a_jpeg_of_fill_bytes_is_refused_at_once() -> None:
    started = time.process_time()
    for data in (b"\xff" * (8 << 20), b"\xff\xd8" + b"\xff\xd0" * (4 << 20)):
        with pytest.raises(InvalidCard, match="damaged jpeg"):
            read_image(b"\xff\xd8\xff" + data, "avatar")
    assert time.process_time() - started < 0.5


def test_fill_bytes_before_a_marker_are_passed_over() -> None:
    comment = b"\xff\xfe\x00\x04ab"
    data = b"\xff\xd8" + b"\xff" * 999 + comment[1:] + b"\xff" * 7 + FRAME[1:]
    image = read_image(data, "avatar")
    assert (image.width, image.height) == (48, 32)
    many = b"\xff\xd8" + comment * 5000 + FRAME
    with pytest.raises(InvalidCard, match="damaged jpeg"):
        read_image(many, "avatar")
