"""Bundles on disk and in archives: a file that is a folder too, links, images of fill bytes alone."""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.errors import ConfigError, InvalidBundle, InvalidCard
from appliance.prompt.bundle import CHARACTER_FILE, Bundle
from appliance.prompt.bundle_folder import read_bundle
from appliance.prompt.bundle_writing import plan_writing, write
from appliance.prompt.cards.charx import read_charx
from appliance.prompt.cards.image import read_image
from tests.card_fixtures import encoded, v3
from tests.characters import bundle_of, written

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
        plan_writing(inside, bundle_of("mira", system="New."), ())
    (inside / "mira.yaml").unlink()
    (inside / "mira.yaml").symlink_to(outside / "nothing")
    with pytest.raises(ConfigError, match="link"):
        plan_writing(inside, bundle_of("mira", system="New."), ())
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
        plan_writing(inside, several(), ())
    assert [path.name for path in outside.iterdir()] == [CHARACTER_FILE]


def test_a_bundle_that_is_written_is_read_again_and_over_an_older_one(tmp_path: Path) -> None:
    longer = Bundle(name="mira", files={**several().files, "z/y": b"1"})
    for bundle in (several(), longer):
        assert read_bundle(written(tmp_path, bundle, several()).place) == bundle
    assert read_bundle(written(tmp_path, several(), longer).place) == several()
    assert not (tmp_path / "mira" / "z" / "y").exists()


@pytest.mark.parametrize("is_file", [True, False])
def test_what_no_version_has_is_told_before_it_is_written_over(
    tmp_path: Path, is_file: bool
) -> None:
    first, second = (bundle_of("mira", system=f"{n}") if is_file else several_of(n) for n in "12")
    place = written(tmp_path, first).place
    file = place if is_file else place / CHARACTER_FILE
    assert plan_writing(tmp_path, first, ()).edited == ()
    assert plan_writing(tmp_path, second, (second, first)).edited == ()
    edit = file.read_text() + "description: Mine.\n"
    file.write_text(edit)
    for bundle in (first, second):
        assert plan_writing(tmp_path, bundle, (second, first)).edited == (file,)
    assert file.read_text() == edit, "planned is not written"
    assert read_bundle(written(tmp_path, second, second, first).place) == second


def several_of(number: str) -> Bundle:
    files = bundle_of("mira", system=number).files
    return Bundle(name="mira", files={**files, f"only-{number}.txt": b"kept"})


def test_files_that_no_version_knows_stay_and_those_of_versions_go(tmp_path: Path) -> None:
    first, second = several_of("1"), several_of("2")
    place = written(tmp_path, first).place
    (place / "notes").mkdir()
    mine, stale = place / "notes" / "mine.txt", place / "only-1.txt"
    mine.write_text("mine")
    (place / "away").symlink_to(tmp_path / "nowhere")
    writing = plan_writing(tmp_path, second, (second, first))
    assert (writing.edited, writing.stale) == ((), (stale,))
    assert writing.unknown == (place / "away", mine)
    # A file that goes may hold an edit, too.
    stale.write_text("edited")
    assert plan_writing(tmp_path, second, (second, first)).edited == (stale,)
    write(writing)
    assert (mine.read_text(), stale.exists()) == ("mine", False)


def test_no_more_versions_are_asked_for_than_it_takes_to_know_what_is_there(tmp_path: Path) -> None:
    first, second = several_of("1"), several_of("2")
    written(tmp_path, first)

    def versions() -> Iterator[Bundle]:
        yield first
        raise AssertionError("asked for more")

    assert plan_writing(tmp_path, first, iter(())).stale == ()
    assert plan_writing(tmp_path, second, versions()).edited == ()


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
