"""Publishing: a bundle that makes a prompt becomes a version; an empty registry takes a folder.

Owns what is checked before anything is stored. Never: moves a label that exists.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from appliance.errors import ConfigError
from appliance.prompt.bundle import Bundle
from appliance.prompt.bundle_folder import read_bundles
from appliance.prompt.characters import DEFAULT_CHARACTER, CharacterVersion
from appliance.prompt.try_out import try_out
from appliance.store.prompt_records import PRODUCTION
from appliance.store.prompt_registry import PromptRegistry

log = logging.getLogger("appliance.chat")

FIRST_AUTHOR = "appliance"
FIRST_MESSAGE = "the characters that came with the program"


async def publish(
    registry: PromptRegistry, bundle: Bundle, *, author: str, message: str
) -> tuple[str, bool]:
    """(version, whether it is new) of a bundle, once it is stored. It is tried out in a process of its
    own before this one looks at it.

    Raises InvalidBundle or TemplateError for one that makes no prompt, InvalidRequest for an author or
    message, StorageUnavailable.
    """
    await asyncio.to_thread(try_out, bundle)
    made = await asyncio.to_thread(CharacterVersion.of, bundle)
    is_new = await registry.publish(
        bundle.name, made.version, bundle.files, author=author, message=message
    )
    return made.version, is_new


async def fill_empty(registry: PromptRegistry, folder: Path) -> int:
    """Publish the characters of a folder and label them `production`, if the registry has no default one.

    Returns how many. A second call after a failure goes on where the first one ended. Raises ConfigError,
    InvalidBundle and TemplateError for the folder, StorageUnavailable.
    """
    labelled = {label.name for label in await registry.labelled(PRODUCTION)}
    if DEFAULT_CHARACTER in labelled:
        return 0
    bundles = {bundle.name: bundle for _, bundle in await asyncio.to_thread(read_bundles, folder)}
    if DEFAULT_CHARACTER not in bundles:
        raise ConfigError(f"{folder}: there is no character {DEFAULT_CHARACTER!r}")
    # The default one is the mark that all are there.
    names = sorted(bundles.keys() - labelled - {DEFAULT_CHARACTER})
    for name in (*names, DEFAULT_CHARACTER):
        version, _ = await publish(
            registry, bundles[name], author=FIRST_AUTHOR, message=FIRST_MESSAGE
        )
        await registry.move(
            name,
            PRODUCTION,
            version,
            seen=None,
            author=FIRST_AUTHOR,
            message=FIRST_MESSAGE,
            protect=True,
        )
    log.info("prompts_published", extra={"characters": len(names) + 1})
    return len(names) + 1
