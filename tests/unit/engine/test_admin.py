"""An operator's questions to a real loop and index: each has one answer, and changes what it says."""

from __future__ import annotations

import random

import pytest

from appliance import tokens
from appliance._core import PrefixIndex
from appliance.engine.admin import EngineAdmin
from appliance.engine.audit import DEMANDS_MAX, Auditor
from appliance.model.decoder import Decoder
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
    Node,
    PathFrom,
    Pin,
    PurgeAll,
    PurgeNamespace,
    PurgePaths,
    Refused,
    Unpin,
)
from tests.unit.engine.driver import Driver

CLOSING = [2, 13]
PUBLIC, ALICE, BOB = b"public", b"alice", b"bob"
SYSTEM = list(range(3, 43))
WAIT_MS = 60_000


def ids(seed: int, count: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(3, 260) for _ in range(count)]


class Operated:
    """A driver, and an operator who asks its engine."""

    def __init__(self, decoder: Decoder, *, pin_pages_max: int = 8) -> None:
        self.driver = Driver(decoder, pin_pages_max=pin_pages_max)
        self.auditor = Auditor(
            decoder,
            self.driver.cache,
            self.driver.index,
            self.driver.tiers,
            tokens_per_minute=0,
            clock=lambda: self.driver.now,
        )
        self.driver.remember = self.auditor.remember
        self.answers: list[Frame] = []
        self.admin = EngineAdmin(
            self.driver.index,
            self.driver.tiers,
            self.auditor,
            instance="engine",
            model_fingerprint=decoder.fingerprint,
            page_size=16,
            send=lambda _connection, frame: self.answers.append(frame),
        )

    def ask(self, question: AdminQuestion) -> AdminAnswer:
        self.admin.answer(1, question)
        for _ in range(1000):
            if self.answers:
                break
            self.auditor.step()
        (answer,) = self.answers
        self.answers.clear()
        self.driver.check()
        assert isinstance(answer, AdminAnswer)
        return answer

    def chat(self, seed: int, namespace: bytes = ALICE) -> tuple[str, list[int]]:
        """A turn behind the public text, and all that it left behind."""
        prompt = [*SYSTEM, *ids(seed, 30)]
        run = self.driver.run(
            prompt,
            closing=CLOSING,
            stretches=[(PUBLIC, 40), (namespace, 30)],
            conversation=b"%d" % seed,
        )
        return run, [*prompt, *self.driver.reply(run), *CLOSING]

    def explain(self, path: list[int], namespace: bytes = ALICE) -> Explained:
        answer = self.ask(
            Explain(token_ids=tokens.pack(path), stretches=stretches(path, namespace))
        )
        assert isinstance(answer, Explained)
        return answer


def stretches(path: list[int], namespace: bytes = ALICE) -> list[tuple[bytes, int]]:
    return [(PUBLIC, 40), (namespace, len(path) - 40)]


@pytest.fixture
def operated(decoder: Decoder) -> Operated:
    return Operated(decoder)


def test_an_explanation_says_what_is_found_and_where_another_version_begins(
    operated: Operated,
) -> None:
    _, path = operated.chat(1)
    whole = operated.explain([*path, 5])
    assert (whole.hit_tokens, whole.miss_tokens, whole.cause) == (80, 1, "hit")
    assert (whole.host_tokens, whole.disk_tokens) == (0, 0)
    edited = operated.explain([*path[:50], 5, *path[51:]])
    assert (edited.hit_tokens, edited.cause) == (50, "diverged")
    assert edited.asked is not None
    assert tokens.unpack(edited.asked)[0] == 5
    hidden = operated.explain(path, BOB)
    assert (hidden.hit_tokens, hidden.cause, hidden.cached) == (40, "cold", None)


def test_a_pin_keeps_a_path_until_it_is_unpinned_and_follows_the_conversation(
    operated: Operated,
) -> None:
    run, path = operated.chat(1)
    pin = Pin(conversation=b"c", node=operated.driver.node(run))
    other, _ = operated.chat(2)
    pin_other = Pin(conversation=b"c", node=operated.driver.node(other))
    assert operated.ask(pin_other) == Done(request_id="", pages=5)
    assert operated.ask(pin) == Done(request_id="", pages=5)
    assert operated.driver.index.stats()["pages_pinned"] == 5
    for seed in range(2, 40):
        operated.driver.run(ids(seed, 200), namespace=b"others")
    assert operated.explain([*path, 5]).hit_tokens == 80
    assert operated.ask(Unpin(conversation=b"c")) == Done(request_id="", pages=5)
    assert operated.ask(Unpin(conversation=b"c")) == Done(request_id="", pages=0)
    for seed in range(2, 40):
        operated.driver.run(ids(seed, 200), namespace=b"others")
    assert operated.explain([*path, 5]).hit_tokens == 0


def test_pins_over_the_budget_and_of_unknown_places_are_refused_with_the_reason(
    operated: Operated,
) -> None:
    first, _ = operated.chat(1)
    second, _ = operated.chat(2, BOB)
    pinned = operated.ask(Pin(conversation=b"a", node=operated.driver.node(first)))
    assert pinned == Done(request_id="", pages=5)
    refused = operated.ask(Pin(conversation=b"b", node=operated.driver.node(second)))
    assert isinstance(refused, Refused)
    assert refused.error_code == "conflict"
    assert "engine.pin_pages_max" in refused.error_message
    for node in (
        Node(instance="another", number=1, tokens=3),
        Node(instance="engine", number=99, tokens=3),
    ):
        refused = operated.ask(Pin(conversation=b"a", node=node))
        assert isinstance(refused, Refused)
        assert refused.error_code == "unknown_node"
    assert operated.driver.index.stats()["pages_pinned"] == 5


def test_a_purge_drops_a_path_a_tenant_or_all_and_no_more(operated: Operated) -> None:
    (_, one), (_, two), (_, theirs) = operated.chat(1), operated.chat(2), operated.chat(3, BOB)

    def found() -> list[int]:
        return [
            operated.explain([*path, 5], namespace).hit_tokens
            for path, namespace in ((one, ALICE), (two, ALICE), (theirs, BOB))
        ]

    assert found() == [80, 80, 80]
    tail_of_one = PathFrom(token_ids=tokens.pack(one), stretches=stretches(one), from_token=41)
    # The same path twice: what is gone already is not counted again.
    dropped = operated.ask(PurgePaths(paths=[tail_of_one, tail_of_one]))
    assert dropped == Done(request_id="", pages=3)
    assert found() == [40, 80, 80]
    assert operated.ask(PurgeNamespace(namespace=ALICE)) == Done(request_id="", pages=3)
    assert found() == [40, 40, 80]
    assert operated.ask(PurgeAll()) == Done(request_id="", pages=5)
    assert operated.driver.index.stats()["pages_cached"] == 0


def test_a_purge_while_a_request_runs_lets_it_finish_and_caches_nothing_of_it(
    operated: Operated,
) -> None:
    _, path = operated.chat(1)
    prompt = [*path, *ids(7, 10)]
    run = operated.driver.submit(
        prompt, stretches=stretches(prompt), closing=CLOSING, new_tokens_max=6
    )
    operated.driver.step()
    operated.driver.step()
    assert operated.ask(PurgeNamespace(namespace=ALICE)) == Done(request_id="", pages=4)
    operated.driver.finish()
    assert operated.driver.reason(run) == "length"
    operated.driver.compare_with_recomputation(run)
    assert operated.explain(prompt).hit_tokens == 32
    assert operated.auditor.values["audit_failures"] == 0


def test_audits_on_demand_are_answered_with_what_was_compared(operated: Operated) -> None:
    _, path = operated.chat(1)
    asked = AuditPath(token_ids=tokens.pack(path), stretches=stretches(path), wait_ms=WAIT_MS)
    answer = operated.ask(asked)
    assert isinstance(answer, Audited)
    assert [(found.tokens, found.cause) for found in answer.paths] == [(80, None)]
    sampled = operated.ask(AuditSample(tokens=10, wait_ms=WAIT_MS))
    assert isinstance(sampled, Audited)
    assert [(found.tokens, found.cause) for found in sampled.paths] == [(80, None)]
    nothing = operated.ask(AuditSample(tokens=10, wait_ms=WAIT_MS))
    assert nothing == Audited(request_id="", paths=[])


def test_questions_that_make_no_sense_are_refused(operated: Operated) -> None:
    _, path = operated.chat(1)
    packed = tokens.pack(path)
    questions: list[AdminQuestion] = [
        Explain(token_ids=packed, stretches=[(ALICE, 3)]),
        PurgePaths(paths=[PathFrom(token_ids=packed, stretches=stretches(path), from_token=80)]),
        AuditPath(token_ids=packed, stretches=[(ALICE, 3)], wait_ms=WAIT_MS),
        AuditPath(token_ids=b"", stretches=[], wait_ms=WAIT_MS),
    ]
    for question in questions:
        refused = operated.ask(question)
        assert isinstance(refused, Refused), question
        assert refused.error_code == "invalid_request"


def test_audits_that_nobody_waits_for_any_more_give_up_their_places(operated: Operated) -> None:
    sample = AuditSample(tokens=10, wait_ms=WAIT_MS)
    for _ in range(DEMANDS_MAX):
        operated.admin.answer(1, sample)
    assert isinstance(operated.ask(sample), Refused)
    operated.chat(1)
    operated.driver.now += WAIT_MS / 1000
    answer = operated.ask(sample)
    assert isinstance(answer, Audited)
    # None of the others took the path out of the sample.
    assert [found.tokens for found in answer.paths] == [80]


def test_no_pins_are_taken_by_an_index_without_a_budget() -> None:
    index = PrefixIndex(page_size=4, pages=8, pin_pages_max=0)
    lease = index.admit(tokens.pack([1, 2, 3]), [(b"n", 3)], 3)
    assert lease is not None
    lease.commit(3)
    lease.release()
    with pytest.raises(ValueError, match="of at most 0"):
        index.pin(lease.node)
