"""A character whose files change: published, at `production`, and held by the conversations that move."""

from __future__ import annotations

from uuid import UUID

from appliance.chat.publishing import publish
from appliance.prompt.bundle import Bundle
from appliance.server.auth import LOCAL_TENANT
from appliance.server.services import Services


async def move_all(services: Services, bundle: Bundle, *opened: UUID) -> str:
    """The version of new conversations, and of these, from now on; returns it."""
    registry = services.catalog.registry
    version, _ = await publish(registry, bundle, author="ana", message="an edit")
    labels = {at.label: at.version for at in await registry.labels(bundle.name)}
    await registry.move(
        bundle.name,
        "production",
        version,
        seen=labels.get("production"),
        author="ana",
        message="an edit",
    )
    await services.catalog.reload()
    for conversation_id in opened:
        held = await services.conversations.get(
            tenant=LOCAL_TENANT, conversation_id=conversation_id
        )
        await services.conversations.change(held, reference=version)
    return version
