"""CHARX files: a zip of `card.json` and a card's other files, read within limits and written again.

Never writes to a disk, and never lets a stranger's path name anything outside of the file.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Mapping

from appliance.errors import InvalidCard
from appliance.prompt.bundle import BYTES_MAX, FILES_MAX, PATH_BYTES_MAX

CARD_FILE = "card.json"
ENTRIES_MAX = FILES_MAX
DECODED_BYTES_MAX = BYTES_MAX
"""As many and as large as a bundle's files, which they become."""

RATIO_MAX = 100
"""Unpacked against packed: text packs to a fifth, images hardly; a bomb packs to a thousandth."""

RATIO_FROM_BYTES = 64 * 1024
ENTRY_PATH_BYTES_MAX = PATH_BYTES_MAX - 16

_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_ENCRYPTED = 0x1
_DIRECTORY_ENTRY = b"PK\x01\x02"
_BAD_IN_PATH = re.compile(r"[\\:*?\"<>|]")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def read_charx(data: bytes) -> dict[str, bytes]:
    """All files by path; raises InvalidCard naming the entry and the limit.

    Nothing of it is returned unless all of it is sound.
    """
    # Each entry of the directory begins so. Files inside of files may hold a few of them, too.
    if data.count(_DIRECTORY_ENTRY) > 4 * ENTRIES_MAX:
        raise _too_many()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = _checked(archive)
            left = DECODED_BYTES_MAX
            files: dict[str, bytes] = {}
            for entry in entries:
                files[entry.filename] = _read(archive, entry, left)
                left -= len(files[entry.filename])
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError) as error:
        raise InvalidCard("charx: the zip file is damaged", param="charx") from error
    if CARD_FILE not in files:
        raise InvalidCard(f"charx: there is no {CARD_FILE} at its root", param="charx")
    return files


def write_charx(files: Mapping[str, bytes]) -> bytes:
    """The zip of these files: the same bytes for the same files."""
    assert CARD_FILE in files
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(files, key=lambda path: (path != CARD_FILE, path)):
            archive.writestr(_entry(path), files[path], zipfile.ZIP_DEFLATED)
    return target.getvalue()


def safe_path(path: str) -> bool:
    """Whether a path is relative, plain, hides nothing and stays below where it begins."""
    parts = path.split("/")
    return (
        len(path.encode("utf-8", "surrogatepass")) <= ENTRY_PATH_BYTES_MAX
        and path.isprintable()
        and _BAD_IN_PATH.search(path) is None
        and all(part and not part.startswith(".") for part in parts)
    )


def _checked(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    found = archive.infolist()
    if len(found) > ENTRIES_MAX:
        raise _too_many()
    entries = [entry for entry in found if not entry.filename.endswith("/")]
    seen: set[str] = set()
    for entry in entries:
        path = entry.orig_filename
        if not safe_path(path) or path != entry.filename:
            raise InvalidCard(f"charx: {path[:80]!r} is no path inside of the file", param="charx")
        if path in seen:
            raise InvalidCard(f"charx: {path!r} is in the zip twice", param="charx")
        seen.add(path)
        if entry.flag_bits & _ENCRYPTED:
            raise InvalidCard(f"charx: {path!r} is encrypted", param="charx")
        if entry.compress_type not in _METHODS:
            raise InvalidCard(f"charx: {path!r} is packed in a way not read here", param="charx")
        _check_ratio(path, entry.file_size, entry.compress_size)
    for path in sorted(seen):
        parts = path.split("/")
        for end in range(1, len(parts)):
            folder = "/".join(parts[:end])
            if folder in seen:
                raise InvalidCard(
                    f"charx: {folder!r} is a file, and a folder of {path!r}", param="charx"
                )
    return entries


def _too_many() -> InvalidCard:
    return InvalidCard(f"charx: more than {ENTRIES_MAX} entries in the zip", param="charx")


def _check_ratio(path: str, size: int, packed: int) -> None:
    if size > RATIO_FROM_BYTES and size > RATIO_MAX * packed:
        raise InvalidCard(
            f"charx: {path!r} unpacks to more than {RATIO_MAX} times its size", param="charx"
        )


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, left: int) -> bytes:
    """What the entry says of its size is not believed; the archive checks its CRC at the end."""
    with archive.open(entry) as file:
        content = file.read(left + 1)
    if len(content) > left:
        raise InvalidCard(
            f"charx: it unpacks to more than {DECODED_BYTES_MAX} bytes (at {entry.filename!r})",
            param="charx",
        )
    return content


def _entry(path: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(path, date_time=_EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry
