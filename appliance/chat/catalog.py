"""The catalog: which version of which character a conversation's prompts are made with.

Owns the snapshot that new conversations go by, and the versions that pinned ones hold. A snapshot is
replaced as a whole; while the database is away the last one serves on. Never: publishes, moves a label,
or changes a conversation.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from contextlib import suppress

from appliance.database_failure import DatabaseFailure
from appliance.errors import (
    ApplianceError,
    InvalidBundle,
    InvalidRequest,
    NotFound,
    StorageUnavailable,
    TemplateError,
)
from appliance.prompt.bundle import Bundle
from appliance.prompt.cast import Cast
from appliance.prompt.characters import DEFAULT_CHARACTER, Characters, CharacterVersion
from appliance.prompt.groups import Group
from appliance.store.prompt_records import PRODUCTION, Label
from appliance.store.prompt_registry import PromptRegistry
from appliance.store.records import Conversation, Member

log = logging.getLogger("appliance.chat")

POLL_S = 1.0
"""How soon a label that was moved through another server is seen."""

AWAY_POLL_S = 5.0
"""How often a database that is away is asked again."""

VERSIONS_MAX = 256
"""Compiled versions kept beside the snapshot's: those that pinned conversations used last."""

VERSIONS_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of the texts that these were made of; compiled they take several times as much."""

GROUPS_MAX = 16
"""Groups kept, by the versions of their members, which are as large as these."""


class Catalog:
    """Compiled characters. Safe to share between all requests; `current` is None until `reload`."""

    def __init__(self, registry: PromptRegistry, *, current: Characters | None = None) -> None:
        self.registry = registry
        self._current = current
        self._others: OrderedDict[tuple[str, str], CharacterVersion] = OrderedDict()
        self._others_bytes = 0
        self._groups: OrderedDict[tuple[Member, ...], Group] = OrderedDict()
        self._seen: tuple[Label, ...] | None = None
        self._reloading = asyncio.Lock()

    @property
    def current(self) -> Characters:
        """What label `production` stands at; raises StorageUnavailable before the first `reload`."""
        if self._current is None:
            raise StorageUnavailable("The characters are not read yet; try again in a moment.")
        return self._current

    async def of(self, character_id: str | None, version: str | None) -> CharacterVersion:
        """A version of a character; without one, that of label `production`.

        Asks the database only for a version that was not used lately. Raises NotFound,
        StorageUnavailable, and TemplateError for a version that this program cannot use.
        """
        if version is None:
            return self.current.get(character_id)
        name = character_id or DEFAULT_CHARACTER
        current = None if self._current is None else self._current.by_id.get(name)
        if current is not None and current.version == version:
            return current
        found = self._others.get((name, version))
        if found is None:
            found = await self._compiled(name, version)
        self._keep(found)
        return found

    async def cast(self, conversation: Conversation) -> Cast:
        """Who answers in a conversation: its character, or the members of its group. Raises as `of`."""
        if conversation.scene.members:
            return await self.group(conversation.scene.members)
        return await self.of(conversation.character, conversation.prompt_version)

    async def group(self, members: tuple[Member, ...]) -> Group:
        """Several characters together. Raises as `of`."""
        group = self._groups.pop(members, None)
        if group is None:
            group = Group.of([await self.of(member.id, member.version) for member in members])
        self._groups[members] = group
        while len(self._groups) > GROUPS_MAX:
            self._groups.popitem(last=False)
        return group

    async def resolve(self, character_id: str | None, reference: str) -> CharacterVersion:
        """The version that a label or the beginning of one means. Raises as `of`, InvalidRequest."""
        name = character_id or DEFAULT_CHARACTER
        return await self.of(name, await self.registry.resolve(name, reference))

    async def bundle(self, name: str, version: str) -> Bundle:
        """The files of a version, proven to be those published. Raises NotFound, InvalidBundle."""
        bundle = Bundle(name=name, files=await self.registry.files(name, version))
        if bundle.version != version:
            raise InvalidBundle(
                f"{name}: the files of version {version[:12]} are not those that were published"
            )
        return bundle

    async def reload(self) -> Characters:
        """Take a new snapshot of label `production`; raises StorageUnavailable.

        A version that cannot be used is told in the log, and the character stays at the one before: that
        which served, at a start the last usable one that its label stood at.
        """
        # One after the other: an older snapshot must not be put in place of a newer one.
        async with self._reloading:
            return await self._take(await self.registry.labelled(PRODUCTION))

    async def _renew(self) -> bool:
        """Whether any label had moved, and then a new snapshot was taken.

        The labels themselves are compared: a number of the newest move says nothing of one that began
        before it and was stored after.
        """
        async with self._reloading:
            labels = await self.registry.labelled(PRODUCTION)
            if labels == self._seen:
                return False
            await self._take(labels)
            return True

    async def _take(self, labels: tuple[Label, ...]) -> Characters:
        before = {} if self._current is None else self._current.by_id
        found = [await self._usable(label, before.get(label.name)) for label in labels]
        taken = [version for version in found if version is not None]
        for version in before.values():
            self._keep(version)  # conversations are pinned to them
        self._current, self._seen = Characters.of(taken), labels
        return self._current

    async def _usable(
        self, label: Label, served: CharacterVersion | None
    ) -> CharacterVersion | None:
        with suppress(TemplateError, NotFound):
            return await self.of(label.name, label.version)
        if served is not None:
            return served
        tried = {label.version}
        for move in await self.registry.moves(label.name):
            if move.label == label.label and move.to_version not in tried:
                tried.add(move.to_version)
                with suppress(TemplateError, NotFound):
                    return await self.of(label.name, move.to_version)
        return None

    async def watch(self) -> None:
        """Reload soon after any label moves, for ever; a database that is away is waited for."""
        pause_s = POLL_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = POLL_S
            try:
                if await self._renew():
                    log.info("prompts_reloaded", extra={"characters": len(self.current.by_id)})
            except (StorageUnavailable, *DatabaseFailure) as error:
                # Also a schema that is being restored: the snapshot serves on, whatever is wrong there.
                log.warning("prompts_not_read", extra={"error": type(error).__name__})
                pause_s = AWAY_POLL_S

    async def _compiled(self, name: str, version: str) -> CharacterVersion:
        try:
            bundle = await self.bundle(name, version)
            return await asyncio.to_thread(CharacterVersion.of, bundle)
        except (InvalidRequest, TemplateError) as error:
            # A card and a lorebook have errors of their own, all of a request. Where in which file is the
            # operator's affair.
            _tell(name, version, error)
            raise TemplateError(
                "the conversation's version of the character is unusable"
            ) from error

    def _keep(self, version: CharacterVersion) -> None:
        key = (version.character.id, version.version)
        before = self._others.pop(key, None)
        self._others_bytes += version.text_bytes - (0 if before is None else before.text_bytes)
        self._others[key] = version
        while len(self._others) > VERSIONS_MAX or (
            self._others_bytes > VERSIONS_BYTES_MAX and len(self._others) > 1
        ):
            _, forgotten = self._others.popitem(last=False)
            self._others_bytes -= forgotten.text_bytes


def _tell(name: str, version: str, error: ApplianceError) -> None:
    log.error(
        "prompt_version_unusable",
        extra={"character": name, "version": version, "reason": error.message},
    )
