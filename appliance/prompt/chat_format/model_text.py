"""What the server needs of a model directory: tokenizer, chat format, stop tokens. Loads no weights.

Reads `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja`, `generation_config.json` and
`config.json`. Never: a tensor.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from appliance._core import Tokenizer
from appliance.errors import ModelError
from appliance.prompt.chat_format.chat_format import ChatFormat
from appliance.prompt.chat_format.layout import WholeLayout
from appliance.prompt.chat_format.template_runner import TemplateRunner

log = logging.getLogger("appliance.prompt")

MEMO_BYTES_MAX = 64 * 1024 * 1024
TEMPLATE_BYTES_MAX = 1024 * 1024

_TOKEN_VARIABLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelText:
    """A model as text: how to encode, how to lay out messages, which tokens end a reply.

    Every control token ends a reply: one that is not the format's own end begins a turn, which only
    the format may do, and has no text that a reader could see.
    """

    tokenizer: Tokenizer
    chat_format: ChatFormat
    stop_token_ids: tuple[int, ...]

    @classmethod
    def load(
        cls, directory: Path, *, now: datetime, memo_bytes_max: int = MEMO_BYTES_MAX
    ) -> ModelText:
        """Read a model directory; `now` is the date a chat template may write.

        Raises ModelError, naming the file, when one is missing or damaged.
        """
        tokenizer_path = directory / "tokenizer.json"
        try:
            tokenizer_json = tokenizer_path.read_bytes()
            tokenizer = Tokenizer(tokenizer_json, memo_bytes_max=memo_bytes_max)
        except OSError as error:
            raise ModelError(f"{tokenizer_path}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ModelError(f"{tokenizer_path}: not a tokenizer: {error}") from error
        settings = _json_map(directory / "tokenizer_config.json")
        template, origin = _chat_template(directory, settings)
        runner = TemplateRunner(
            template=template or "", origin=origin, variables=_token_texts(settings), now=now
        )
        chat_format = (
            ChatFormat.generic(runner, tokenizer, f"{origin}: no chat template")
            if template is None
            else ChatFormat.derive(runner, tokenizer)
        )
        if chat_format.fallback_reason is not None:
            log.warning("generic_chat_format", extra={"reason": chat_format.fallback_reason})
        if isinstance(chat_format.layout, WholeLayout):
            # Each new number or order of messages renders the template again.
            log.info("whole_chat_format", extra={"origin": origin})
        stop = _stop_tokens(directory, settings, tokenizer) | _control_tokens(tokenizer_json)
        if chat_format.end_token is not None:
            stop.add(chat_format.end_token)
        return cls(tokenizer=tokenizer, chat_format=chat_format, stop_token_ids=tuple(sorted(stop)))


def _json_map(path: Path) -> Mapping[str, Any]:
    """A JSON object in a file; empty when there is no such file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ModelError(f"{path}: not a JSON object: {error}") from error


def _chat_template(directory: Path, settings: Mapping[str, Any]) -> tuple[str | None, str]:
    """(template, the file it is in). A file of its own counts more than the settings."""
    path = directory / "chat_template.jinja"
    try:
        with path.open("rb") as file:
            text = file.read(TEMPLATE_BYTES_MAX + 1).decode("utf-8")
        found: object = text
    except FileNotFoundError:
        path = directory / "tokenizer_config.json"
        found = settings.get("chat_template")
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: not UTF-8: {error.reason}") from error
    if isinstance(found, list):
        named = {item.get("name"): item.get("template") for item in found if isinstance(item, dict)}
        found = named.get("default")
    if found is None:
        return None, str(path)
    if not isinstance(found, str):
        raise ModelError(f"{path}: chat_template is no text")
    if len(found.encode("utf-8", errors="surrogatepass")) > TEMPLATE_BYTES_MAX:
        raise ModelError(f"{path}: chat_template is larger than {TEMPLATE_BYTES_MAX} bytes")
    return found, str(path)


def _token_texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """The control tokens that templates name, as text."""
    texts: dict[str, str] = {}
    for name in _TOKEN_VARIABLES:
        value = settings.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            texts[name] = value
    return texts


class _AddedToken(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    special: bool = False


class _AddedTokens(msgspec.Struct, frozen=True, kw_only=True):
    added_tokens: list[_AddedToken] = []


def _control_tokens(tokenizer_json: bytes) -> set[int]:
    """Ids that `tokenizer.json` calls special."""
    added = msgspec.json.decode(tokenizer_json, type=_AddedTokens).added_tokens
    return {token.id for token in added if token.special}


def _stop_tokens(directory: Path, settings: Mapping[str, Any], tokenizer: Tokenizer) -> set[int]:
    """End-of-sequence ids of every file that names them, within the vocabulary."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value = _json_map(directory / name).get("eos_token_id")
        for token_id in value if isinstance(value, list) else [value]:
            if isinstance(token_id, int) and 0 <= token_id < tokenizer.vocab_size:
                found.add(token_id)
    eos = _token_texts(settings).get("eos_token")
    eos_id = None if eos is None else tokenizer.token_id(eos)
    if eos_id is not None:
        found.add(eos_id)
    return found
