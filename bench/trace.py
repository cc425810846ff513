"""A seeded trace of conversations as token ids: a shared system prompt, chats that grow turn by turn.

Holds the histories, so that a turn can be had in the form that each cache wants. Never: a cache.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SYSTEM_TOKENS = 512
TURN_TOKENS = 100
"""Of a user's message and its reply together, on average."""
VOCABULARY = 49_152


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTokens:
    """One turn of one chat. `known` tokens of the prompt are those of the turn before, reply included."""

    chat: int
    known: int
    prompt: bytes
    reply: bytes

    @property
    def new(self) -> bytes:
        """The prompt's tokens that are not known."""
        return self.prompt[4 * self.known :]

    @property
    def tokens(self) -> int:
        """Of prompt and reply."""
        return (len(self.prompt) + len(self.reply)) // 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonTokens:
    """The same turn as SGLang takes it (arrays of 64 bits) and as vLLM does (lists)."""

    prompt_array: array[int]
    whole_array: array[int]
    prompt_list: list[int]
    reply_list: list[int]


class Trace:
    """So many chats over one system prompt. The same seed gives the same tokens."""

    def __init__(self, chats: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        system = self._tokens(SYSTEM_TOKENS)
        self._histories = [system] * chats
        self._known = [0] * chats
        # One object for each id: a list of ids is an array of references to them.
        self._ids = list(range(VOCABULARY))

    def round(self, turns: int = 1) -> list[TurnTokens]:
        """The next turn of every chat, in an order drawn; or so many turns sent as one."""
        order = self._random.permutation(len(self._histories))
        return [self._turn(int(chat), turns) for chat in order]

    def python_tokens(self, turn: TurnTokens) -> PythonTokens:
        """The turn in the peers' forms."""
        prompt = [self._ids[token] for token in memoryview(turn.prompt).cast("I")]
        reply = [self._ids[token] for token in memoryview(turn.reply).cast("I")]
        return PythonTokens(
            prompt_array=array("q", prompt),
            whole_array=array("q", prompt + reply),
            prompt_list=prompt,
            reply_list=reply,
        )

    def _turn(self, chat: int, turns: int) -> TurnTokens:
        user = self._tokens(self._length() + (turns - 1) * TURN_TOKENS)
        reply = self._tokens(self._length())
        prompt = np.concatenate([self._histories[chat], user])
        whole = np.concatenate([prompt, reply])
        known, self._known[chat] = self._known[chat], len(whole)
        self._histories[chat] = whole
        return TurnTokens(chat=chat, known=known, prompt=prompt.tobytes(), reply=reply.tobytes())

    def _length(self) -> int:
        half = TURN_TOKENS // 2
        return int(self._random.integers(half // 2, half + half // 2))

    def _tokens(self, count: int) -> NDArray[np.uint32]:
        return self._random.integers(0, VOCABULARY, count, dtype=np.uint32)
