"""Everything the handlers of one application share, under one typed key. Owns no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field

from aiohttp import web

from appliance._core import Tokenizer
from appliance.chat.cache_view import CacheView
from appliance.chat.card_import import CardImport
from appliance.chat.catalog import Catalog
from appliance.chat.completion import Completions
from appliance.chat.conversations import Conversations
from appliance.chat.experimenting import Experimenting
from appliance.chat.prompt_view import PromptView
from appliance.chat.turn import Turns
from appliance.config import Config
from appliance.server.drain import Drain
from appliance.server.experiment_pages import ExperimentPages
from appliance.server.metrics import Metrics
from appliance.server.readiness import Readiness
from appliance.server.storage import Storage
from appliance.server.streams import Streams
from appliance.spans import NoTracer, Tracer
from appliance.store.search import Search
from appliance.wire.engines import Engines


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The parts below the HTTP door, and the door's own shared state."""

    config: Config
    turns: Turns
    conversations: Conversations
    completions: Completions
    engine: Engines
    cache_view: CacheView
    catalog: Catalog
    experimenting: Experimenting
    prompt_view: PromptView
    card_import: CardImport
    search: Search
    tokenizer: Tokenizer
    metrics: Metrics
    drain: Drain
    readiness: Readiness
    storage: Storage
    tracer: Tracer = field(default_factory=NoTracer)
    streams: Streams = field(default_factory=Streams)
    experiment_pages: ExperimentPages = field(default_factory=ExperimentPages)


SERVICES: web.AppKey[Services] = web.AppKey("services", Services)
