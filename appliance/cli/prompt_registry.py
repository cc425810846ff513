"""`appliance prompt publish | label | history | import | export`: versions, and labels that move.

Asks a running appliance over its admin socket. Never: a database.
"""

from __future__ import annotations

import argparse
import getpass
from base64 import b64decode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from appliance.cli.admin_client import add_place, ask, place_words
from appliance.cli.plain_text import as_json, visible, when
from appliance.cli.prompt_references import read_path, sent_bundle
from appliance.errors import ConfigError, InvalidRequest

if TYPE_CHECKING:
    from appliance.prompt.bundle import Bundle

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

VERSION_CHARACTERS = 12
"""Of a version's hash, as many are shown."""


def add_publish(kinds: Subparsers) -> None:
    """The options of `publish`."""
    parser = kinds.add_parser("publish", help="store a character as a version; no chat changes")
    parser.add_argument("path", type=Path, metavar="PATH", help="a character's file or folder")
    _add_who_and_why(parser)
    _add_common(parser)


def add_import(kinds: Subparsers) -> None:
    """The options of `import`."""
    parser = kinds.add_parser("import", help="publish every character of a folder")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    _add_who_and_why(parser)
    _add_common(parser)


def add_export(kinds: Subparsers) -> None:
    """The options of `export`."""
    parser = kinds.add_parser("export", help="write characters to a folder, for git")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument(
        "names", nargs="*", metavar="NAME[@VERSION]", help="which (default: all at production)"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="write over edits that were never published, too"
    )
    _add_common(parser)


def add_label(kinds: Subparsers) -> None:
    """The options of `label`."""
    parser = kinds.add_parser("label", help="move a label, which new chats go by, to a version")
    parser.add_argument("name", metavar="NAME", help="the character's id")
    parser.add_argument("label", metavar="LABEL", help="production, canary or another name")
    parser.add_argument("version", metavar="VERSION", help="the beginning of a version, or a label")
    parser.add_argument(
        "--from",
        dest="seen",
        metavar="VERSION",
        help="move it only from there (default: from where it is now)",
    )
    parser.add_argument(
        "--confirm", metavar="LABEL", help="a protected label's name again, so that it moves"
    )
    protection = parser.add_mutually_exclusive_group()
    protection.add_argument("--protect", action="store_true", default=None)
    protection.add_argument("--unprotect", dest="protect", action="store_false", default=None)
    _add_who_and_why(parser)
    _add_common(parser)


def add_history(kinds: Subparsers) -> None:
    """The options of `history`."""
    parser = kinds.add_parser("history", help="versions, labels, and who moved them and why")
    parser.add_argument("name", metavar="NAME", help="the character's id")
    _add_common(parser)


def run_publish(options: argparse.Namespace) -> int:
    """Publish one; returns the exit code."""
    answer = ask(options, "POST", "/prompts", _published(options, read_path(options.path)))
    print(as_json(answer) if options.json else _said_of(answer, options))
    return 0


def run_import(options: argparse.Namespace) -> int:
    """Publish all of a folder, once all of it could be read; returns the exit code."""
    from appliance.prompt.bundle_folder import read_bundles
    from appliance.prompt.path_kind import PathKind, no_characters, path_kind

    kind = path_kind(options.folder)
    if kind is not PathKind.FOLDER:
        raise ConfigError(
            f"{options.folder}: {kind.value}; a folder of characters is expected (one is published by: "
            "appliance prompt publish)"
        )
    bundles = [bundle for _, bundle in read_bundles(options.folder)]
    if not bundles:
        raise no_characters(options.folder)
    answers = [ask(options, "POST", "/prompts", _published(options, bundle)) for bundle in bundles]
    if options.json:
        print(as_json(answers))
    else:
        for answer in answers:
            print(_said_of(answer, options))
    return 0


def run_export(options: argparse.Namespace) -> int:
    """Write versions to a folder, once it is known that nothing is lost; returns the exit code."""
    from appliance.prompt.bundle_writing import plan_writing, write

    names = options.names or ask(options, "GET", "/prompts")["served"]
    planned = []
    for text in names:
        name, _, at = text.partition("@")
        bundle = _version(options, name, at or "production")
        planned.append((bundle, plan_writing(options.folder, bundle, _versions(options, name))))
    edited = [str(path) for _, writing in planned for path in writing.edited]
    if edited and not options.overwrite:
        raise ConfigError(
            f"{', '.join(edited)}: what stands there was never published and would be lost: publish it "
            "first (appliance prompt publish), or say --overwrite; nothing is written"
        )
    told, lines = [], []
    for bundle, writing in planned:
        write(writing)
        stay = [str(path) for path in writing.unknown]
        place = str(writing.place)
        told.append({"name": bundle.name, "version": bundle.version, "path": place, "stay": stay})
        lines.append(f"{bundle.name} {_short(bundle.version)} -> {place}")
        lines += [f"{path} stays: no version has it" for path in stay]
    print(as_json(told) if options.json else "\n".join(lines))
    return 0


def run_label(options: argparse.Namespace) -> int:
    """Move a label; returns the exit code."""
    if options.confirm is not None and options.confirm != options.label:
        raise InvalidRequest(
            f"--confirm names {options.confirm!r}, the label is {options.label!r}: nothing is done"
        )
    name = quote(options.name, safe="")
    known = ask(options, "GET", f"/prompts/{name}")
    at = {label["label"]: label["version"] for label in known["labels"]}
    seen = at.get(options.label)
    if options.seen is not None:
        stated = quote(options.seen, safe="")
        seen = ask(options, "GET", f"/prompts/{name}/versions/{stated}")["version"]
    body = {
        "version": options.version,
        "seen": seen,
        "protect": options.protect,
        "confirmed": options.confirm is not None,
        **_who_and_why(options),
    }
    answer = ask(options, "PUT", f"/prompts/{name}/labels/{quote(options.label, safe='')}", body)
    print(as_json(answer) if options.json else _moved(answer))
    return 0


def run_history(options: argparse.Namespace) -> int:
    """Print what there is and what happened; returns the exit code."""
    answer = ask(options, "GET", f"/prompts/{quote(options.name, safe='')}")
    print(as_json(answer) if options.json else visible(_history(answer)))
    return 0


def _versions(options: argparse.Namespace, name: str) -> Iterator[Bundle]:
    """All versions of a character, the newest first, each asked for when it is needed."""
    for one in ask(options, "GET", f"/prompts/{quote(name, safe='')}")["versions"]:
        yield _version(options, name, one["version"])


def _version(options: argparse.Namespace, name: str, at: str) -> Bundle:
    from appliance.prompt.bundle import Bundle

    answer = ask(options, "GET", f"/prompts/{quote(name, safe='')}/versions/{quote(at, safe='')}")
    files = {path: b64decode(content) for path, content in answer["files"].items()}
    return Bundle(name=answer["name"], files=files)


def _add_who_and_why(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", "--message", required=True, help="why; kept in the history")
    parser.add_argument("--author", default=None, help="who (default: your user name)")


def _add_common(parser: argparse.ArgumentParser) -> None:
    add_place(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _who_and_why(options: argparse.Namespace) -> dict[str, str]:
    author = getpass.getuser() if options.author is None else options.author
    return {"author": author, "message": options.message}


def _published(options: argparse.Namespace, bundle: Bundle) -> dict[str, Any]:
    return {"bundle": sent_bundle(bundle), **_who_and_why(options)}


def _short(version: str | None) -> str:
    return "nowhere" if version is None else version[:VERSION_CHARACTERS]


def _said_of(answer: Mapping[str, Any], options: argparse.Namespace) -> str:
    """What became of a version, and the command that gives it to chats."""
    name, version = answer["name"], _short(answer["version"])
    if not answer["is_new"]:
        return f"{name} {version}: the same content is published already"
    labels = ask(options, "GET", f"/prompts/{quote(name, safe='')}")["labels"]
    is_protected = any(one["label"] == "production" and one["protected"] for one in labels)
    confirm = " --confirm production" if is_protected else ""
    return (
        f"{name} {version}: published; no chat has it before a label does: "
        f"appliance prompt label {name} production {version} -m WHY{confirm}{place_words(options)}"
    )


def _moved(answer: Mapping[str, Any]) -> str:
    label, move = f"{answer['name']}@{answer['label']}", answer["move"]
    if move is None:
        return f"{label} is at {_short(answer['version'])} already"
    protected = " (protected)" if move["protected"] else ""
    if move["from_version"] == move["to_version"]:
        state = "is protected now" if move["protected"] else "is no longer protected"
        return f"{label} {state}, at {_short(move['to_version'])}"
    return f"{label}: {_short(move['from_version'])} -> {_short(move['to_version'])}{protected}"


def _history(answer: Mapping[str, Any]) -> str:
    at: dict[str, list[str]] = {}
    for label in answer["labels"]:
        protected = " (protected)" if label["protected"] else ""
        at.setdefault(label["version"], []).append(f"{label['label']}{protected}")
    lines = ["versions"]
    for version in answer["versions"]:
        labels = ", ".join(at.get(version["version"], []))
        lines.append(
            f"  {_short(version['version'])}  {when(version['created_at'])}  {version['author']}: "
            f"{_line(version['message'])}" + (f"  <- {labels}" if labels else "")
        )
        lines += [
            f"    shipped {when(one['at'])} as arm {one['arm']} of experiment {one['experiment']}; why: "
            f"appliance experiment report {one['experiment']}"
            for one in answer["shipped"]
            if one["version"] == version["version"]
        ]
    lines.append("labels moved")
    # Newest first: what stood before a move is further down.
    is_protected: dict[str, bool] = {}
    told: list[str] = []
    for move in reversed(answer["moves"]):
        was = is_protected.get(move["label"], False)
        is_protected[move["label"]] = move["protected"]
        told.append(
            f"  {when(move['moved_at'])}  {move['label']}: {_what_moved(move, was)}  "
            f"{move['author']}: {_line(move['message'])}"
        )
    lines += reversed(told)
    return "\n".join(lines)


def _what_moved(move: Mapping[str, Any], was_protected: bool) -> str:
    """From where to where, and whether its protection was set or lifted; that may be all."""
    changed = ""
    if move["protected"] != was_protected:
        changed = "protected" if move["protected"] else "no longer protected"
    if move["from_version"] == move["to_version"]:
        return f"{changed or 'nothing changed'}, at {_short(move['to_version'])}"
    path = f"{_short(move['from_version'])} -> {_short(move['to_version'])}"
    return f"{path} ({changed})" if changed else path


def _line(text: str) -> str:
    return " ".join(text.split())
