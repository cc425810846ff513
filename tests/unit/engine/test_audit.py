"""The audit over a real loop and model: what is right passes, and every fault is caught by name."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from appliance import tokens
from appliance.engine.audit import Auditor, AuditResult
from appliance.engine.audit_cause import Cause
from appliance.engine.audit_sample import CachedPath
from appliance.engine.sequence import Sequence
from appliance.model.decoder import Decoder, load_model
from tests.model_fixtures import tiny_model, write_directory
from tests.unit.engine.driver import Driver

CLOSING = [2, 13]


def ids(seed: int, count: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(3, 260) for _ in range(count)]


class Audited:
    """A driver, an auditor beside it, and what its audits say."""

    def __init__(self, decoder: Decoder, tokens_per_minute: int = 0) -> None:
        self.driver = Driver(decoder)
        self.auditor = Auditor(
            decoder,
            self.driver.cache,
            self.driver.index,
            tokens_per_minute=tokens_per_minute,
            clock=lambda: self.driver.now,
            random_source=random.Random(1),
        )
        self.driver.loop._remember = self.auditor.remember

    def path_of(self, run: str) -> CachedPath:
        path = [*self.driver.prompts[run], *self.driver.reply(run), *CLOSING]
        fingerprint = self.driver.decoder.fingerprint.encode()
        stretches = ((fingerprint + b"tenant", len(path)),)
        return CachedPath(token_ids=tokens.pack(path), stretches=stretches)

    def pages_of(self, path: CachedPath) -> list[int]:
        lease = self.driver.index.admit(
            path.token_ids + tokens.pack([3]), [*path.stretches, (b"x", 1)], path.tokens + 1
        )
        assert lease is not None
        assert lease.hit_tokens == path.tokens
        pages = list(tokens.unpack(lease.page_table))
        lease.release()
        return pages

    def audit(self, path: CachedPath) -> AuditResult:
        answers: list[list[AuditResult]] = []
        self.auditor.demand(path, 0, answers.append)
        for _ in range(100):
            if answers:
                break
            self.auditor.step()
        self.driver.index.check()
        assert self.driver.index.stats()["pages_leased"] == 0
        ((result,),) = answers
        return result


@pytest.fixture
def audited(decoder: Decoder) -> Audited:
    return Audited(decoder)


def test_what_is_cached_passes_and_nothing_is_left_behind(audited: Audited) -> None:
    run = audited.driver.run(ids(1, 70), closing=CLOSING)
    path = audited.path_of(run)
    before = audited.driver.index.stats()["pages_cached"]
    result = audited.audit(path)
    assert (result.cause, result.tokens, result.top1_agrees) == (None, path.tokens, True)
    assert result.logit_difference < 1e-4
    assert audited.driver.index.stats()["pages_cached"] == before
    assert audited.auditor.values["audit_failures"] == 0


def assert_quarantined(audited: Audited, path: CachedPath, result: AuditResult) -> None:
    """The wrong page and what follows it are gone, what is before is not, and a new turn is right."""
    assert result.page is not None
    assert result.pages_dropped >= 1
    assert audited.auditor.values["audit_alarm"] == 1
    found = audited.driver.index.explain(
        path.token_ids + tokens.pack([3]), [*path.stretches, (b"x", 1)]
    )
    assert found["hit_tokens"] == result.page * 16
    again = audited.driver.run(list(tokens.unpack(path.token_ids)), closing=CLOSING)
    audited.driver.compare_with_recomputation(again)


def test_swapped_pages_are_named(audited: Audited) -> None:
    path = audited.path_of(audited.driver.run(ids(1, 70), closing=CLOSING))
    pages = audited.pages_of(path)
    data = audited.driver.cache.data
    data[:, :, [pages[1], pages[3]]] = data[:, :, [pages[3], pages[1]]].clone()
    result = audited.audit(path)
    assert (result.cause, result.position, result.page) == (Cause.SWAPPED_PAGES, 16, 1)
    assert_quarantined(audited, path, result)


def test_a_page_of_another_tenant_is_named(audited: Audited) -> None:
    path = audited.path_of(audited.driver.run(ids(1, 70), closing=CLOSING))
    other = audited.driver.run(ids(2, 70), closing=CLOSING, namespace=b"other")
    theirs = CachedPath(
        token_ids=audited.path_of(other).token_ids,
        stretches=((audited.driver.decoder.fingerprint.encode() + b"other", path.tokens),),
    )
    data = audited.driver.cache.data
    data[:, :, audited.pages_of(path)[2]] = data[:, :, audited.pages_of(theirs)[2]]
    result = audited.audit(path)
    assert (result.cause, result.position, result.page) == (Cause.FOREIGN_PAGE, 32, 2)
    assert_quarantined(audited, path, result)
    assert audited.audit(theirs).cause is None


def test_one_token_committed_too_many_is_named(
    audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit_too_much(sequence: Sequence, count: int) -> None:
        assert sequence.lease is not None
        known = sequence.lease.tokens
        if count > known:
            sequence.lease.append(sequence.ids(known, count).tobytes())
        sequence.lease.commit(count)

    monkeypatch.setattr(Sequence, "commit", commit_too_much)
    # Without its last step, the row of the last closing token is never written.
    monkeypatch.setattr(
        Sequence, "pending_tokens", property(lambda s: s.length - s.computed - s.closes)
    )
    monkeypatch.setattr(
        Sequence, "closes", property(lambda s: s.state.value == "closing"), raising=False
    )
    path = audited.path_of(audited.driver.run(ids(1, 70), closing=CLOSING))
    monkeypatch.undo()
    result = audited.audit(path)
    assert (result.cause, result.position) == (Cause.UNWRITTEN_ROW, path.tokens - 1)
    assert_quarantined(audited, path, result)


def test_pages_of_other_weights_are_named(audited: Audited, tmp_path: Path) -> None:
    path = audited.path_of(audited.driver.run(ids(1, 70), closing=CLOSING))
    other = load_model(write_directory(tmp_path, tiny_model(seed=9)), "cpu", 1)
    audited.auditor._pass._decoder = other
    result = audited.audit(path)
    assert (result.cause, result.position) == (Cause.STALE_PAGE, 0)


def test_content_of_nowhere_is_named_by_its_place(audited: Audited) -> None:
    path = audited.path_of(audited.driver.run(ids(1, 70), closing=CLOSING))
    audited.driver.cache.data[:, :, audited.pages_of(path)[2], :, 5] += torch.tensor(0.5)
    result = audited.audit(path)
    assert (result.cause, result.position, result.page) == (Cause.WRONG_CONTENT, 37, 2)
    assert_quarantined(audited, path, result)


def test_user_messages_that_are_not_committed_are_found_at_once(
    audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The story's bug: the history up to the user's message is cached, and nothing after it."""
    commit = Sequence.commit
    monkeypatch.setattr(Sequence, "commit", lambda s, count: commit(s, min(count, 40)))
    audited.driver.run(ids(1, 70), closing=CLOSING)
    assert audited.auditor.values["audit_failures"] == 1


def test_idle_time_audits_keep_to_their_budget_and_give_way(decoder: Decoder) -> None:
    audited = Audited(decoder, tokens_per_minute=60)
    audited.driver.run(ids(1, 70), closing=CLOSING)
    wait_s = audited.auditor.wait_s()
    assert wait_s is not None
    assert wait_s > 60
    audited.auditor.step()
    assert not audited.auditor.holds_pages
    audited.driver.now += wait_s + 1
    audited.auditor.step()
    assert audited.auditor.holds_pages
    audited.auditor.give_way()
    assert audited.driver.index.stats()["pages_leased"] == 0
