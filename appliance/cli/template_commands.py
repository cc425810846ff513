"""What `appliance prompt` prints: a template, looked at before any chat uses it.

Owns how parts and findings look on the terminal. Never: a conversation, a database, the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from appliance.cli.demo_model import DEMO_MODEL_NAME, demo_cache_dir
from appliance.cli.exit_codes import EXIT_BAD_INPUT
from appliance.cli.plain_text import visible
from appliance.counted import counted
from appliance.errors import ApplianceError, ConfigError
from appliance.prompt.bundle import CHARACTER_FILE
from appliance.prompt.bundle_folder import read_bundle
from appliance.prompt.character_file import read_character
from appliance.prompt.characters import CharacterVersion, template_in
from appliance.prompt.chat_format.model_text import ModelText
from appliance.prompt.lore.lint import lore_findings
from appliance.prompt.path_kind import PathKind, in_folder, no_characters, not_one, path_kind
from appliance.prompt.templates.compiling import load_template
from appliance.prompt.templates.fitting import fit_parts
from appliance.prompt.templates.inputs import Scope
from appliance.prompt.templates.lint import SAMPLE, Finding, Level, findings
from appliance.prompt.templates.parts import Rendered, RenderedPart
from appliance.prompt.templates.poet import PoetTemplate
from appliance.prompt.templates.reading import part_tokens
from appliance.prompt.templates.template import Template
from appliance.prompt.truncate import Window
from appliance.prompt.try_out import try_out, try_out_file
from appliance.tokens import count

DATA_BYTES_MAX = 16 * 1024 * 1024
_SHARED = {
    Scope.CHARACTER: "public",
    Scope.CONVERSATION: "private",
    Scope.TURN: "may change each turn",
}
_HISTORY = "the conversation's messages come here"


def lint(path: Path, data: Mapping[str, Any]) -> int:
    """Print the findings, of a folder those of all that is in it; returns the exit code: 2 when one of
    them is an error."""
    kind = path_kind(path)
    if kind is PathKind.FOLDER:
        return _lint_folder(path, data)
    _try_out(path, data)
    if kind is PathKind.WHOLE_FILE:
        PoetTemplate.load(path)
        if data:
            _rendered(path, data)
        print(
            f"{path}: compiles" + (" and renders" if data else "; with --data it is rendered too")
        )
        return 0
    if kind is PathKind.CHARACTER:
        return _lint_character(path, data)
    template = load_template(path)
    if data:
        _render_own(template, data)
    if _print_findings(findings(template)):
        return EXIT_BAD_INPUT
    print(f"{path}: {counted(len(template.parts), 'part')}, version {template.version[:12]}")
    return 0


def _lint_folder(folder: Path, data: Mapping[str, Any]) -> int:
    """Each on its own: what is wrong with one says nothing of the next."""
    if data:
        raise ConfigError(f"{folder}: a folder; --data is for one template or character")
    paths = list(in_folder(folder))
    if not paths:
        raise no_characters(folder)
    codes = []
    for path in paths:
        try:
            codes.append(lint(path, data))
        except ApplianceError as error:
            print(f"error: {visible(error.message)}")
            codes.append(EXIT_BAD_INPUT)
    return max(codes)


def _lint_character(path: Path, data: Mapping[str, Any]) -> int:
    """A character's file or folder: its template, and its lorebook where its texts go."""
    bundle = read_bundle(path)
    if CHARACTER_FILE in bundle.files:
        # All that lint finds, and not the first error alone.
        character = read_character(bundle.files[CHARACTER_FILE], str(path))
        own = findings(template_in(bundle, character, str(path)))
        if any(finding.level is Level.ERROR for finding in own):
            _print_findings(own)
            return EXIT_BAD_INPUT
    version = CharacterVersion.of(bundle)
    if data:
        _render_version(version, data)
    found = [*findings(version.template), *lore_findings(version.lore, str(path))]
    if _print_findings(found):
        return EXIT_BAD_INPUT
    entries = sum(len(book.book.entries) for book in version.lore.books)
    lore = f"{entries:,} {'entry' if entries == 1 else 'entries'} of lore"
    print(f"{path}: {counted(len(version.template.parts), 'part')}, {lore}")
    return 0


def _print_findings(found: Sequence[Finding]) -> bool:
    """Whether one of them is an error."""
    for finding in found:
        print(f"{finding.level.value}: {visible(finding.sentence)}")
    return any(finding.level is Level.ERROR for finding in found)


def _rendered(
    path: Path, data: Mapping[str, Any], limit: int | None = None
) -> tuple[Rendered, bool]:
    """The parts, and whether the conversation's messages have a place of their own between them. A
    whole-file template may look at the `limit`."""
    kind = path_kind(path)
    if kind is PathKind.WHOLE_FILE:
        parts = PoetTemplate.load(path).render(data, token_limit=_token_limit(limit))
        return Rendered(before=parts, after=()), False
    if kind is PathKind.CHARACTER:
        return _render_version(CharacterVersion.of(read_bundle(path)), data), True
    return _render_own(load_template(path), data), True


def _try_out(path: Path, data: Mapping[str, Any], limit: int | None = None) -> None:
    """A template may be anybody's: this process looks at none that needs too much."""
    kind = path_kind(path)
    if kind is PathKind.FOLDER:
        raise not_one(path, kind)
    if kind is PathKind.CHARACTER:
        try_out(read_bundle(path))
    else:
        try_out_file(path, data, token_limit=_token_limit(limit))


def _token_limit(limit: int | None) -> int:
    """What a whole-file template is told: -1 for none."""
    return -1 if limit is None else limit


def _render_own(template: Template, data: Mapping[str, Any]) -> Rendered:
    _check_names(template, data)
    return template.render({**template.front.samples(), **data}, SAMPLE)


def _render_version(version: CharacterVersion, data: Mapping[str, Any]) -> Rendered:
    _check_names(version.template, data)
    return version.render(SAMPLE, inputs={**version.template.front.samples(), **data})


def _check_names(template: Template, data: Mapping[str, Any]) -> None:
    for name in data:
        if name not in template.front.inputs:
            known = ", ".join(sorted(template.front.inputs)) or "none"
            raise ConfigError(
                f"the data has {name!r}, the template no such input (inputs: {known})"
            )


def read_data(path: Path) -> dict[str, Any]:
    """The variables in a JSON file; raises ConfigError naming the file."""
    try:
        with path.open("rb") as file:
            source = file.read(DATA_BYTES_MAX + 1)
        if len(source) > DATA_BYTES_MAX:
            raise ConfigError(f"{path}: larger than {DATA_BYTES_MAX} bytes")
        return msgspec.json.decode(source, type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not a JSON object: {error}") from error


def _model(folder: Path | None) -> ModelText:
    folder = folder or demo_cache_dir() / DEMO_MODEL_NAME
    if not (folder / "tokenizer.json").exists():
        raise ConfigError(f"{folder}: no model here; name one with --model FOLDER")
    return ModelText.load(folder, now=datetime.now(UTC))


def print_parts(path: Path, data: Mapping[str, Any]) -> None:
    """Print the parts with their texts."""
    _try_out(path, data)
    rendered, history = _rendered(path, data)
    for part in rendered.before:
        _print_part(part)
    if history:
        print(f"--- {_HISTORY} ---\n")
    for part in rendered.after:
        _print_part(part)


def _print_part(part: RenderedPart) -> None:
    about = [part.role, f"zone {part.zone.value}", _SHARED[part.scope]]
    if part.truncation_priority:
        about.append(f"truncation priority {part.truncation_priority}")
    print(f"--- {visible(part.name)} ({', '.join(about)}) ---")
    print(visible(part.content) + "\n")


def print_tokens(
    path: Path, data: Mapping[str, Any], model_folder: Path | None, limit: int | None
) -> int:
    """Print how many tokens each part and section has, by the demo's model unless one is named.

    Returns the exit code: 2 when those that are never dropped are more than `limit`. Raises
    ContextLengthExceeded when they are not, but leave no room for the newest message.
    """
    _try_out(path, data, limit)
    rendered, history = _rendered(path, data, limit)
    model = _model(model_folder)
    for part in rendered.before:
        _print_count(part, model)
    if history:
        print(f"{'':>8}  {_HISTORY}")
    for part in rendered.after:
        _print_count(part, model)
    sizes = [(part, part_tokens(part, model.chat_format)) for part in rendered.parts]
    total = sum(size for _, size in sizes)
    print(f"{total:>8}  in all, with what the chat format puts before each part")
    protected = [(part.name, size) for part, size in sizes if not part.truncation_priority]
    if limit is None or total <= limit:
        return 0
    if sum(size for _, size in protected) <= limit:
        if history:
            names = [part.name for part, _ in sizes if part.truncation_priority]
            print(f"more than {limit}: {', '.join(map(visible, names))} may be left out, as needed")
        else:
            _print_cut(rendered, model, limit)
        return 0
    named = ", ".join(f"{name} {size}" for name, size in protected)
    print(f"error: the parts that are never dropped do not fit {limit} tokens: {visible(named)}")
    return EXIT_BAD_INPUT


def _print_cut(rendered: Rendered, model: ModelText, limit: int) -> None:
    """What of a whole-file template goes, so that what is left and a reply's header fit."""
    window = Window(limit=limit + 1, reserve=1, step=0)
    fitted = fit_parts(model.chat_format, rendered.before, window, b"")
    kept = {message.name for message in fitted.prompt.messages}
    gone = [visible(part.name) for part in rendered.before if part.name not in kept]
    print(f"cut to {limit}: {fitted.prompt.tokens} tokens stay; left out: {', '.join(gone)}")


def _print_count(part: RenderedPart, model: ModelText) -> None:
    tokens = part_tokens(part, model.chat_format)
    print(f"{tokens:>8}  {visible(part.name)} ({part.role}, {part.zone.value})")
    for section in part.sections:
        tokens_in = count(model.tokenizer.encode(section.content))
        print(f"{tokens_in:>12}  {visible(section.name)}")
