"""Answers an operator's questions about the cache: one answer each. Never: sees text or a socket."""

from __future__ import annotations

from collections.abc import Callable

from appliance._core import PrefixIndex
from appliance.engine.audit import Auditor
from appliance.engine.audit_path import AuditResult
from appliance.engine.audit_sample import CachedPath
from appliance.engine.tiers import Tiers
from appliance.errors import Conflict, InvalidRequest, UnknownNode
from appliance.tokens import TokenIds
from appliance.wire.frames import (
    AdminAnswer,
    AdminQuestion,
    Audited,
    AuditPath,
    AuditSample,
    Done,
    Explain,
    Explained,
    Frame,
    PathAudit,
    Pin,
    PurgeAll,
    PurgeNamespace,
    PurgePaths,
    Refused,
    Unpin,
)


class EngineAdmin:
    """The operator's side of one engine. Owns which conversation pinned which node."""

    def __init__(
        self,
        index: PrefixIndex,
        tiers: Tiers,
        auditor: Auditor,
        *,
        instance: str,
        model_fingerprint: str,
        page_size: int,
        send: Callable[[int, Frame], None],
    ) -> None:
        """`send(connection, frame)` must not block."""
        self._index = index
        self._tiers = tiers
        self._auditor = auditor
        self._instance = instance
        self._page_size = page_size
        self._prefix = model_fingerprint.encode()
        self._send = send
        self._pinned: dict[bytes, tuple[int, int]] = {}

    def answer(self, connection: int, question: AdminQuestion) -> None:
        """Send the answer, for an audit once it is done; to none that nobody waits for any more."""
        try:
            answer = self._answer(connection, question)
        except (Conflict, UnknownNode, InvalidRequest) as error:
            answer = Refused(
                request_id=question.request_id,
                error_code=error.code,
                error_message=error.message,
            )
        if answer is not None:
            self._send(connection, answer)

    def _answer(self, connection: int, question: AdminQuestion) -> AdminAnswer | None:
        request_id = question.request_id
        if isinstance(question, Explain):
            return self._explain(question)
        if isinstance(question, AuditPath | AuditSample):
            self._audit(connection, question)
            return None
        if isinstance(question, Pin):
            return Done(request_id=request_id, pages=self._pin(question))
        if isinstance(question, Unpin):
            return Done(request_id=request_id, pages=self._unpin(question.conversation))
        return Done(request_id=request_id, pages=self._purge(question))

    def _explain(self, question: Explain) -> Explained:
        try:
            found = self._index.explain(question.token_ids, self._stretches(question.stretches))
        except ValueError as error:
            raise InvalidRequest(str(error)) from error
        return Explained(request_id=question.request_id, **found)  # type: ignore[arg-type]

    def _pin(self, question: Pin) -> int:
        node = question.node
        known = self._index.node_tokens(node.number) if node.instance == self._instance else None
        if known != node.tokens:
            raise UnknownNode("the engine does not have this node")
        before = self._pinned.pop(question.conversation, None)
        # First, so that the budget need not have room for both.
        if before is not None:
            self._index.unpin(before[0])
        try:
            self._index.pin(node.number)
        except ValueError as error:
            # Where the older place is no longer known, it cannot be pinned again.
            if before is not None and self._index.node_tokens(before[0]) is not None:
                self._index.pin(before[0])
                self._pinned[question.conversation] = before
            raise Conflict(f"{error} (engine.pin_pages_max)") from error
        pages = -(-node.tokens // self._page_size)
        self._pinned[question.conversation] = (node.number, pages)
        return pages

    def _unpin(self, conversation: bytes) -> int:
        node, pages = self._pinned.pop(conversation, (None, 0))
        return pages if node is not None and self._index.unpin(node) else 0

    def _purge(self, question: PurgeAll | PurgeNamespace | PurgePaths) -> int:
        if isinstance(question, PurgeAll):
            return self._tiers.forget()
        if isinstance(question, PurgeNamespace):
            return self._tiers.purge(self._prefix + question.namespace)
        try:
            return sum(
                self._tiers.quarantine(
                    path.token_ids, self._stretches(path.stretches), path.from_token
                )
                for path in question.paths
            )
        except ValueError as error:
            raise InvalidRequest(str(error)) from error

    def _audit(self, connection: int, question: AuditPath | AuditSample) -> None:
        def tell(results: list[AuditResult]) -> None:
            paths = [_told(result) for result in results]
            self._send(connection, Audited(request_id=question.request_id, paths=paths))

        wait_s = question.wait_ms / 1000
        if isinstance(question, AuditSample):
            self._auditor.demand(None, question.tokens, tell, wait_s=wait_s)
        else:
            path = self._path(question.token_ids, question.stretches)
            self._auditor.demand(path, 0, tell, wait_s=wait_s)

    def _path(self, token_ids: TokenIds, stretches: list[tuple[bytes, int]]) -> CachedPath:
        path = CachedPath(token_ids=token_ids, stretches=tuple(self._stretches(stretches)))
        if path.tokens == 0 or sum(count for _, count in stretches) != path.tokens:
            raise InvalidRequest("the stretches do not cover the tokens")
        return path

    def _stretches(self, stretches: list[tuple[bytes, int]]) -> list[tuple[bytes, int]]:
        """As requests have them: with the model's fingerprint in front (`admission.make_sequence`)."""
        return [(self._prefix + namespace, count) for namespace, count in stretches]


def _told(result: AuditResult) -> PathAudit:
    return PathAudit(
        tokens=result.tokens,
        logit_difference=result.logit_difference,
        row_difference=result.row_difference,
        top1_agrees=result.top1_agrees,
        cause=None if result.cause is None else result.cause.value,
        position=result.position,
        page=result.page,
        pages_dropped=result.pages_dropped,
    )
