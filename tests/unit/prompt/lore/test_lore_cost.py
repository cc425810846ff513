"""What lore costs, counted in tokens of prompts: frozen into the history, against entries at the top."""

from __future__ import annotations

import random
from collections.abc import Sequence

from appliance.chat.history import with_lore
from appliance.prompt.fit import fit
from appliance.prompt.lore.activation import Before, activated
from appliance.prompt.lore.lorebook import read_lorebook
from appliance.prompt.lore.matching import NOTHING, CompiledBook
from appliance.prompt.messages import PromptMessage
from appliance.prompt.namespace import PUBLIC
from appliance.prompt.truncate import Window
from appliance.store.records import FrozenText
from appliance.tokens import count
from tests.unit.prompt.formats import conversation, format_of
from tests.unit.prompt.templates import CHATML

TURNS = 200
ENTRIES = 100
SPACE = Window(limit=8192, reserve=512, step=2048)
WORDS = [
    "a",
    "lamp",
    "by",
    "the",
    "old",
    "stair",
    "over",
    "water",
    "and",
    "wind",
    "of",
    "night",
    "stone",
    "grey",
    "bell",
]


class Chat:
    """A chat whose messages name an entry of a book in a quarter of the turns; counts what is found of a
    prompt in the one before it, reply included."""

    def __init__(self, *, at_top: bool) -> None:
        self.draw = random.Random(4)
        book = read_lorebook(
            {
                "entries": [
                    {"name": f"e{i}", "keys": [f"<{i}>"], "content": f"{i}: {self.words(6)}"}
                    for i in range(ENTRIES)
                ],
                "scan_depth": 4,
            }
        )
        assert book is not None
        self.book = CompiledBook.of(book)
        self.at_top = at_top
        self.chat_format = format_of(CHATML)
        self.front = conversation(("system", self.words(40)), namespace=PUBLIC)
        self.history: list[PromptMessage] = []
        self.found = [[NOTHING]]
        self.standing: list[frozenset[str]] = []
        self.prompt_tokens, self.hit_tokens, self.dropped = 0, 0, 0
        self.cached = b""

    def words(self, number: int) -> str:
        return " ".join(self.draw.choice(WORDS) for _ in range(number))

    def called(self, active: frozenset[str], replies: int) -> Sequence[FrozenText]:
        called = activated(
            [self.book],
            self.found[:4],
            Before(active=active, replies=replies),
            seed=b"chat",
            tokens_of=lambda entry: len(entry.content),
            tokens_max=100_000,
        )
        return [FrozenText(name=e.name, text=e.content, entry=e.digest) for e in called]

    def turn(self, number: int) -> None:
        text = self.words(4)
        if self.draw.random() < 0.25:
            text += f" <{self.draw.randrange(ENTRIES)}>"
        self.found.insert(0, [self.book.found(text)])
        (message,) = conversation(("user", text))
        front = self.front
        if self.at_top:
            # As editors place entries: what the latest messages call up, anew in each prompt.
            texts = [text.text for text in self.called(frozenset(), number)]
            top = conversation(("system", "\n".join(texts))) if texts else []
            front = [*top, *self.front]
            said = [message]
        else:
            lore = self.called(frozenset().union(*self.standing), number)
            self.standing.append(frozenset(str(one.entry) for one in lore))
            said = with_lore(message, lore, takes_leads=True)
        self.history += said
        fitted = fit(self.chat_format, front, self.history, SPACE)
        asked, self.dropped = fitted.prompt.token_ids, fitted.messages_dropped
        self.prompt_tokens += count(asked)
        self.hit_tokens += shared(self.cached, asked)
        self.standing = self.standing[-(sum(m.role == "user" for m in fitted.prompt.messages)) :]
        (reply,) = conversation(("assistant", self.words(6)))
        self.found.insert(0, [self.book.found(reply.content)])
        self.history.append(reply)
        spoken = self.chat_format.tokenizer.encode(reply.content, reply.namespace)
        self.cached = asked + spoken + self.chat_format.closing


def shared(left: bytes, right: bytes) -> int:
    """Tokens that two prompts begin with alike."""
    low, high = 0, min(count(left), count(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[: 4 * middle] == right[: 4 * middle]:
            low = middle
        else:
            high = middle - 1
    return low


def hit_of(chat: Chat) -> float:
    for number in range(TURNS):
        chat.turn(number)
    return chat.hit_tokens / chat.prompt_tokens


def test_frozen_lore_keeps_the_prefix_where_entries_at_the_top_lose_it() -> None:
    frozen, top = Chat(at_top=False), Chat(at_top=True)
    frozen_hit, top_hit = hit_of(frozen), hit_of(top)
    assert sum(message.role == "system" for message in frozen.history) > 30
    assert frozen.dropped > 0
    assert frozen_hit >= 0.95
    assert top_hit < 0.75
