"""Lets replies grow: samples the next tokens and sends them. Never: runs the model or ends by failure."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Rows

from appliance.engine import answers
from appliance.engine.chunk import Chunk
from appliance.engine.counters import Counters
from appliance.engine.endings import Endings
from appliance.engine.runner import Outcome
from appliance.engine.sampler import Choice, Sampled, sample
from appliance.engine.sequence import Sequence
from appliance.errors import ApplianceError, GenerationFailed
from appliance.wire.frames import Frame

log = logging.getLogger("appliance.engine")


class Replies:
    """Turns logits into tokens of replies."""

    def __init__(
        self, endings: Endings, counters: Counters, *, send: Callable[[int, Frame], None]
    ) -> None:
        self._endings = endings
        self._counters = counters
        self._send = send

    def sample(self, chunks: Rows[Chunk], outcomes: Rows[Outcome]) -> list[Sampled | None]:
        """The next token of each chunk that has logits, in order; None where they are not finite."""
        rows, choices = [], []
        for chunk, outcome in zip(chunks, outcomes, strict=True):
            if outcome is None or isinstance(outcome, ApplianceError):
                continue
            rows.append(outcome)
            choices.append(
                Choice(
                    sampling=chunk.sequence.request.sampling,
                    seed=chunk.sequence.seed,
                    position=chunk.sequence.length,
                    history=chunk.sequence.history,
                )
            )
        return sample(rows, choices)

    def take(self, sequence: Sequence, sampled: Sampled | None) -> None:
        """Append a sampled token, or end the reply."""
        if sampled is None:
            log.error("logits_not_finite", extra={"request_id": sequence.key[1]})
            self._endings.fail(sequence, GenerationFailed("the model gave no finite logits"))
            return
        if sequence.new_tokens == 0:
            sequence.commit(sequence.prompt_tokens)
        if sampled.token_id in sequence.stop_token_ids:
            self._endings.complete(sequence, "stop")
            return
        sequence.tokens.append(sampled.token_id)
        sequence.new_tokens += 1
        self._counters.new_tokens += 1
        if sequence.history is not None:
            sequence.history.add(sampled.token_id)
        self._send(sequence.key[0], answers.token(sequence, sampled))
        if sequence.new_tokens >= sequence.request.new_tokens_max:
            self._endings.complete(sequence, "length")
