"""Our prefix index through the Python door, behind one call a turn.

Two ways to ask: with the whole prompt, as for a client that keeps its own history, and from the node
that the turn before left, with the new tokens alone.
"""

from __future__ import annotations

from appliance._core import Lease, PrefixIndex
from bench.trace import SYSTEM_TOKENS, TurnTokens


class OurIndex:
    """The index, and what a caller remembers of each chat: the node of its last turn.

    `shares_prompts`: commit the prompt once it is computed, as our scheduler does, so that others share
    it while the reply is made; else a turn is one match and one insert.
    """

    def __init__(self, pages: int, page_size: int, *, shares_prompts: bool = True) -> None:
        self._index = PrefixIndex(page_size=page_size, pages=pages)
        self._shares_prompts = shares_prompts
        self._nodes: dict[int, int] = {}

    def whole(self, turn: TurnTokens) -> int:
        """One turn that sends everything; returns the tokens found."""
        prompt_tokens = len(turn.prompt) // 4
        stretches = [(b"public", SYSTEM_TOKENS), (b"tenant:1", prompt_tokens - SYSTEM_TOKENS)]
        lease = self._index.admit(turn.prompt, stretches, turn.tokens)
        return self._finish(lease, turn)

    def known(self, turn: TurnTokens) -> int:
        """One turn that goes on from the node of the one before; returns the tokens found."""
        node = self._nodes.get(turn.chat)
        if node is None:
            return self.whole(turn)
        new = turn.new
        stretches = [(b"tenant:1", len(new) // 4)]
        conversation = turn.chat.to_bytes(8)
        lease = self._index.admit(
            new, stretches, turn.tokens, after=node, conversation=conversation
        )
        return self._finish(lease, turn)

    def _finish(self, lease: Lease | None, turn: TurnTokens) -> int:
        assert lease is not None, "there is room for all"
        hit = lease.hit_tokens
        # The engine reads it once a turn.
        assert lease.page_table
        if self._shares_prompts:
            lease.commit(len(turn.prompt) // 4)
        lease.append(turn.reply)
        lease.commit(turn.tokens)
        self._nodes[turn.chat] = lease.node
        lease.release()
        return hit
