"""A seeded day of chats as an engine sees it: users come, write, read, swipe, edit, stop, go and return.

Owns what the users do and when; prompts are made by the product's own code (`fit`, `continued`), so each
request is a whole prompt or goes on from a known node as in the product, and long chats are cut as there.
Token ids of messages are random: a cache never looks at what they mean. Never: an engine or a cache.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import math
import random
from dataclasses import dataclass

from appliance import tokens
from appliance.chat.params import ChatLimits
from appliance.prompt.chat_format.chat_format import ChatFormat
from appliance.prompt.continuation import Tip, continued, tip_after
from appliance.prompt.fit import Fitted, fit
from appliance.prompt.messages import PromptMessage, Role, Zone
from appliance.prompt.namespace import PUBLIC, tenant_namespace
from appliance.prompt.truncate import Window, window
from appliance.tokens import TokenIds
from appliance.wire.frames import Generate, Node, Sampling

DAY_S = 7_200.0
"""Short, so that a few chats are as many at once as twelve times as many on a day of 24 hours."""
EDITED_TURNS_BACK_MAX = 3
SESSION_HOURS = (2, 1, 1, 1, 1, 2, 3, 4, 5, 5, 5, 6, 6, 5, 5, 5, 6, 8, 10, 12, 12, 11, 8, 4)
"""How many sessions begin in each hour, relatively: most people chat in the evening."""
TEXT = "x"
"""Stands for every message's text: its ids are given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DayShape:
    """What kind of day. Lengths in tokens are averages, seconds medians; shares are of requests.

    A chat goes on until it has `messages`, in `sessions` spread over the day. Of the chats the share
    `returning` began before it, with up to `messages_before`, of which an engine knows nothing yet.
    """

    chats: int
    messages: int = 180
    tenants: int = 4
    characters: int = 20
    character_tokens: int = 400
    user_tokens: int = 40
    reply_tokens: int = 60
    sessions: int = 4
    returning: float = 0.5
    messages_before: int = 80
    swipes: float = 0.15
    edits: float = 0.05
    stops: float = 0.03
    think_s: float = 25.0


class Cause(enum.Enum):
    """Why a request computes what it does, by what its user did; a cut of the front goes before all."""

    NEW = "a new chat's first"
    BACK = "first of a chat begun on another day"
    CUT = "the front was cut"
    SWIPE = "swipe"
    EDIT = "edit"
    NEXT = "next message"


@dataclass(slots=True, kw_only=True, eq=False)
class Asked:
    """One request of one chat. `reply_tokens`: how long the reply gets, `stopped` by the user then or
    complete. `unsaid_tokens`: of the prompt, the message that the user has just written."""

    chat: Chat
    request: Generate
    fitted: Fitted
    cause: Cause
    unsaid_tokens: int
    reply_tokens: int
    stopped: bool


class Day:
    """All chats of a day. Each draws from a seed of its own: what it says does not depend on others."""

    def __init__(
        self, shape: DayShape, chat_format: ChatFormat, *, context_tokens: int, seed: int
    ) -> None:
        limits = ChatLimits()
        self.shape = shape
        self._format = chat_format
        self._window = window(
            limit=context_tokens,
            reserve=limits.reply_reserve_tokens,
            step=limits.truncation_step_tokens,
        )
        source = random.Random(seed)
        characters = [
            _ids(source, chat_format, shape.character_tokens) for _ in range(shape.characters)
        ]
        self._numbers = itertools.count(1)
        self._due: list[tuple[float, int, Chat]] = []
        for number in range(shape.chats):
            chat = Chat(
                number,
                shape,
                chat_format,
                self._window,
                source.choice(characters),
                random.Random(source.getrandbits(64)),
            )
            heapq.heappush(self._due, (chat.begins_at(), number, chat))

    @property
    def next_at(self) -> float | None:
        """When the next request comes, in seconds; None when no chat waits for its user."""
        return self._due[0][0] if self._due else None

    def take(self, now: float) -> list[Asked]:
        """The requests that have come by now."""
        asked = []
        while self._due and self._due[0][0] <= now:
            _, _, chat = heapq.heappop(self._due)
            asked.append(chat.ask(f"r{next(self._numbers)}"))
        return asked

    def answered(self, asked: Asked, now: float, reply: TokenIds, node: Node | None) -> None:
        """The reply as the user saw it, and where the engine left off. It has at least one token."""
        following = asked.chat.hear(asked, now, reply, node)
        if following is not None:
            heapq.heappush(self._due, (following, asked.chat.number, asked.chat))


class Chat:
    """One conversation: its path, what the server remembers of it, and what its user does next."""

    def __init__(
        self,
        number: int,
        shape: DayShape,
        chat_format: ChatFormat,
        space: Window,
        character: TokenIds,
        source: random.Random,
    ) -> None:
        self.number = number
        self._shape = shape
        self._format = chat_format
        self._window = space
        self._random = source
        self._namespace = tenant_namespace(f"tenant-{source.randrange(shape.tenants)}")
        self._conversation = self._namespace + f"/{number}".encode()
        self._system = _message("system", character, PUBLIC)
        self._path: list[PromptMessage] = []
        self._is_begun = False
        self._dropped = 0
        if source.random() < shape.returning:
            for _ in range(source.randint(1, max(shape.messages_before // 2, 1))):
                self._path += [self._said("user"), self._said("assistant")]
        self._known: tuple[Tip, Node] | None = None
        # Where the sessions after the first begin: at how many messages, and when.
        left = shape.messages - len(self._path)
        starts = sorted(self._time_of_day() for _ in range(shape.sessions))
        self._begins_at = starts[0]
        self._breaks = [
            (len(self._path) + left * part // shape.sessions, starts[part])
            for part in range(1, shape.sessions)
        ]

    def begins_at(self) -> float:
        """When its user first writes today."""
        return self._begins_at

    def ask(self, request_id: str) -> Asked:
        """What the user does now: writes, swipes or edits."""
        shape = self._shape
        chosen = self._random.random()
        fitted = None
        after = None
        message = None
        if self._is_begun and chosen < shape.swipes:
            cause = Cause.SWIPE
            self._path.pop()
        else:
            cause = Cause.NEXT
            if self._is_begun and chosen < shape.swipes + shape.edits:
                cause = Cause.EDIT
                back = self._random.randint(1, EDITED_TURNS_BACK_MAX)
                del self._path[max(len(self._path) - 2 * back, 0) :]
                self._known = None
            message = self._said("user")
            if self._known is not None:
                tip, node = self._known
                fitted = continued(self._format, tip, message, self._window)
                after = node if fitted is not None else None
        if not self._is_begun:
            cause = Cause.BACK if self._path else Cause.NEW
        if message is not None:
            self._path.append(message)
        if fitted is None:
            fitted = self._fit()
            if self._is_begun and fitted.messages_dropped > self._dropped:
                cause = Cause.CUT
        self._is_begun = True
        self._dropped = fitted.messages_dropped
        reply_tokens = self._length(shape.reply_tokens)
        is_stopped = self._random.random() < shape.stops
        # A stopped reply would have gone on.
        new_tokens_max = 2 * reply_tokens if is_stopped else reply_tokens
        return Asked(
            chat=self,
            request=self._request(
                request_id,
                fitted,
                new_tokens_max,
                sampling=Sampling(seed=self._random.getrandbits(64)),
                after=after,
            ),
            fitted=fitted,
            cause=cause,
            unsaid_tokens=0 if message is None else tokens.count(message.token_ids or b""),
            reply_tokens=reply_tokens,
            stopped=is_stopped,
        )

    def whole(self, asked: Asked) -> Generate:
        """The request with its whole prompt, for an engine that does not know the node."""
        request = asked.request
        return self._request(
            request.request_id,
            self._fit(),
            request.new_tokens_max,
            sampling=request.sampling,
            after=None,
        )

    def hear(self, asked: Asked, now: float, reply: TokenIds, node: Node | None) -> float | None:
        """Read the reply; returns when the next request comes, None when the chat is over."""
        self._path.append(_message("assistant", reply, self._namespace))
        self._known = None
        if node is not None:
            tip = tip_after(
                self._format,
                asked.fitted,
                TEXT,
                reply_tokens=tokens.count(reply),
                end=node.tokens,
            )
            self._known = None if tip is None else (tip, node)
        if len(self._path) >= self._shape.messages:
            return None
        following = now + self._random.lognormvariate(math.log(self._shape.think_s), 0.8)
        if self._breaks and len(self._path) >= self._breaks[0][0]:
            _, starts = self._breaks.pop(0)
            following = max(following, starts)
        return following

    def _request(
        self,
        request_id: str,
        fitted: Fitted,
        new_tokens_max: int,
        *,
        sampling: Sampling,
        after: Node | None,
    ) -> Generate:
        return Generate(
            request_id=request_id,
            token_ids=fitted.prompt.token_ids,
            stretches=list(fitted.prompt.stretches),
            sampling=sampling,
            new_tokens_max=new_tokens_max,
            stop_token_ids=[],
            closing=fitted.prompt.closing,
            after=after,
            conversation=self._conversation,
            tenant=self._namespace,
        )

    def _fit(self) -> Fitted:
        return fit(self._format, [self._system], self._path, self._window)

    def _said(self, role: Role) -> PromptMessage:
        shape = self._shape
        average = shape.user_tokens if role == "user" else shape.reply_tokens
        token_ids = _ids(self._random, self._format, self._length(average))
        return _message(role, token_ids, self._namespace)

    def _length(self, average: int) -> int:
        """From half to one and a half of the average."""
        return self._random.randint(max(average // 2, 1), average + average // 2)

    def _time_of_day(self) -> float:
        hour = self._random.choices(range(24), SESSION_HOURS)[0]
        return (hour + self._random.random()) * DAY_S / 24


def _message(role: Role, token_ids: TokenIds, namespace: bytes) -> PromptMessage:
    return PromptMessage(
        name=role,
        role=role,
        zone=Zone.CHARACTER if role == "system" else Zone.HISTORY,
        content=TEXT,
        namespace=namespace,
        token_ids=token_ids,
    )


def _ids(source: random.Random, chat_format: ChatFormat, count: int) -> TokenIds:
    return tokens.pack(source.choices(range(chat_format.tokenizer.vocab_size), k=count))
