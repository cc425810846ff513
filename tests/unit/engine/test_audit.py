"""The audit over a real loop and model: what is right passes, and every fault is caught by name."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from appliance import tokens
from appliance._core import page_keys
from appliance.engine.audit import DEMANDS_MAX, Auditor
from appliance.engine.audit_cause import Cause
from appliance.engine.audit_path import AuditResult
from appliance.engine.audit_sample import PATHS_MAX, CachedPath
from appliance.engine.sequence import Sequence
from appliance.errors import Conflict
from appliance.model.decoder import Decoder, load_model
from tests.model_fixtures import tiny_model, write_directory
from tests.unit.engine.driver import INT8_TOLERANCE, Driver

CLOSING = [2, 13]


def ids(seed: int, count: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(3, 260) for _ in range(count)]


class Audited:
    """A driver, an auditor beside it, and what its audits say."""

    def __init__(self, decoder: Decoder, *, tokens_per_minute: int = 0, **options: Any) -> None:
        self.driver = Driver(decoder, **options)
        self.auditor = self.auditor_of(decoder, tokens_per_minute)
        self.driver.remember = self.auditor.remember

    def auditor_of(self, decoder: Decoder, tokens_per_minute: int = 0) -> Auditor:
        return Auditor(
            decoder,
            self.driver.cache,
            self.driver.index,
            self.driver.tiers,
            tokens_per_minute=tokens_per_minute,
            clock=lambda: self.driver.now,
            random_source=random.Random(1),
        )

    def path_of(self, run: str, namespace: bytes = b"tenant") -> CachedPath:
        path = [*self.driver.prompts[run], *self.driver.reply(run), *CLOSING]
        fingerprint = self.driver.decoder.fingerprint.encode()
        stretches = ((fingerprint + namespace, len(path)),)
        return CachedPath(token_ids=tokens.pack(path), stretches=stretches)

    def pages_of(self, path: CachedPath, hit: int | None = None) -> list[int]:
        lease = self.driver.index.admit(
            path.token_ids + tokens.pack([3]), [*path.stretches, (b"x", 1)], path.tokens + 1
        )
        assert lease is not None
        assert lease.hit_tokens == (hit or path.tokens)
        pages = list(tokens.unpack(lease.page_table))
        lease.release()
        return pages

    def audit(self, path: CachedPath) -> AuditResult:
        answers: list[list[AuditResult]] = []
        self.auditor.demand(path, 0, answers.append, wait_s=60)
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


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.int8])
def test_what_is_cached_passes_and_nothing_is_left_behind(
    decoder: Decoder, kv_dtype: torch.dtype
) -> None:
    audited = Audited(decoder, kv_dtype=kv_dtype)
    run = audited.driver.run(ids(1, 70), closing=CLOSING)
    path = audited.path_of(run)
    before = audited.driver.index.stats()["pages_cached"]
    result = audited.audit(path)
    assert (result.cause, result.tokens, result.top1_agrees) == (None, path.tokens, True)
    assert result.logit_difference < (1e-4 if kv_dtype == torch.float32 else INT8_TOLERANCE)
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
    theirs = audited.path_of(other, b"other")
    data = audited.driver.cache.data
    data[:, :, audited.pages_of(path)[2]] = data[:, :, audited.pages_of(theirs)[2]]
    result = audited.audit(path)
    assert (result.cause, result.position, result.page) == (Cause.FOREIGN_PAGE, 32, 2)
    assert_quarantined(audited, path, result)
    assert audited.audit(theirs).cause is None


def on_host(audited: Audited) -> tuple[CachedPath, CachedPath]:
    """Two tenants' chats whose first pages are in host memory."""
    path = audited.path_of(audited.driver.run(ids(1, 70), closing=CLOSING))
    other = audited.driver.run(ids(2, 70), closing=CLOSING, namespace=b"other")
    audited.driver.run(ids(3, 205), new_tokens_max=16, namespace=b"third")
    assert audited.driver.index.stats()["pages_host"] >= 10
    return path, audited.path_of(other, b"other")


def host_slot(audited: Audited, path: CachedPath, page: int) -> int:
    size = audited.driver.page_size
    keys = page_keys(path.token_ids, list(path.stretches), size)
    return dict(audited.driver.index.tier_pages("host"))[keys[page * 32 : page * 32 + 32]]


@pytest.fixture
def tiered(decoder: Decoder) -> Audited:
    return Audited(decoder, pages=14, host_slots=40)


def test_what_comes_back_from_host_memory_passes(tiered: Audited) -> None:
    path, _ = on_host(tiered)
    result = tiered.audit(path)
    assert (result.cause, result.tokens) == (None, path.tokens // 16 * 16)
    assert tiered.driver.tiers.stats()["tier_restored_pages"] == path.tokens // 16


def test_a_page_that_was_damaged_in_host_memory_is_named(tiered: Audited) -> None:
    path, _ = on_host(tiered)
    page = tiered.driver.tiers._arena[host_slot(tiered, path, 2)].view(torch.float32)
    page[100:200] += 0.5
    result = tiered.audit(path)
    assert (result.cause, result.page) == (Cause.DAMAGED_PAGE, 2)
    assert_quarantined(tiered, path, result)


def test_another_tenants_page_that_is_restored_is_named(tiered: Audited) -> None:
    path, theirs = on_host(tiered)
    arena = tiered.driver.tiers._arena
    arena[host_slot(tiered, path, 1)] = arena[host_slot(tiered, theirs, 1)]
    result = tiered.audit(path)
    assert (result.cause, result.position, result.page) == (Cause.FOREIGN_PAGE, 16, 1)
    assert_quarantined(tiered, path, result)


def test_a_failure_takes_the_disk_tier_along(decoder: Decoder, tmp_path: Path) -> None:
    """What lies on disk may be as wrong, and must not come back at the next start."""
    audited = Audited(decoder, pages=14, disk_slots=40, kv_slots=tmp_path / "slots")
    path = audited.path_of(audited.driver.run(ids(1, 70), closing=CLOSING))
    audited.driver.run(ids(3, 205), new_tokens_max=16, namespace=b"third")
    audited.audit(path)
    assert audited.driver.disk is not None
    audited.driver.cache.data[:, :, audited.pages_of(path, 80)[1]] += 0.5
    audited.audit(path)
    assert audited.driver.index.tier_pages("disk") == []
    assert audited.driver.disk.finish(10)
    audited.driver.tiers.close()
    again = Driver(decoder, pages=14, disk_slots=40, kv_slots=tmp_path / "slots")
    assert again.index.tier_pages("disk") == []
    again.tiers.close()


@pytest.mark.parametrize("is_reused", [False, True])
def test_one_token_committed_too_many_is_named(
    audited: Audited, monkeypatch: pytest.MonkeyPatch, is_reused: bool
) -> None:
    if is_reused:
        audited.driver.cache.data.normal_(generator=torch.Generator().manual_seed(3))

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
    audited.auditor = audited.auditor_of(other)
    result = audited.audit(path)
    assert (result.cause, result.position) == (Cause.STALE_PAGE, 0)
    assert audited.driver.index.stats()["pages_cached"] == 0


def test_content_of_nowhere_is_named_by_its_place(audited: Audited) -> None:
    path = audited.path_of(audited.driver.run(ids(1, 70), closing=CLOSING))
    audited.driver.cache.data[:, :, audited.pages_of(path)[2], :, 5] += torch.tensor(0.5)
    result = audited.audit(path)
    assert (result.cause, result.position, result.page) == (Cause.WRONG_CONTENT, 37, 2)
    assert_quarantined(audited, path, result)


@pytest.mark.parametrize("value", [float("nan"), 0.005])
def test_a_row_that_is_no_number_or_a_little_off_is_wrong(audited: Audited, value: float) -> None:
    path = audited.path_of(audited.driver.run(ids(1, 70), closing=CLOSING))
    rows = audited.driver.cache.data[:, :, audited.pages_of(path)[2], :, 5]
    rows += value * rows.abs().amax(-1, keepdim=True)
    result = audited.audit(path)
    assert (result.cause, result.position) == (Cause.WRONG_CONTENT, 37)


def test_right_rows_with_other_logits_are_named(
    audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = audited.path_of(audited.driver.run(ids(1, 70), closing=CLOSING))
    forward = Decoder.forward
    steps = iter(range(100))

    def off_at_first(decoder: Decoder, *arguments: Any) -> torch.Tensor:
        return forward(decoder, *arguments) + (0.1 if next(steps) == 0 else 0.0)

    monkeypatch.setattr(Decoder, "forward", off_at_first)
    assert audited.audit(path).cause is Cause.WRONG_LOGITS


def test_audits_are_no_hits_or_misses_of_requests(audited: Audited) -> None:
    path = audited.path_of(audited.driver.run(ids(1, 70), closing=CLOSING))
    before = audited.driver.index.stats()
    assert audited.audit(path).cause is None
    after = audited.driver.index.stats()
    assert [after[name] for name in ("hit_tokens", "miss_tokens")] == [
        before[name] for name in ("hit_tokens", "miss_tokens")
    ]


@pytest.mark.parametrize("missing", [1, 33])
def test_user_messages_that_are_not_committed_are_found_at_once(
    audited: Audited,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    missing: int,
) -> None:
    """The story's bug: the history up to the user's message is cached, and nothing after it."""
    commit = Sequence.commit
    monkeypatch.setattr(
        Sequence, "commit", lambda s, count: commit(s, min(count, s.length - missing))
    )
    run = audited.driver.run(ids(1, 70), closing=CLOSING)
    assert audited.auditor.values["audit_failures"] == 1
    (record,) = [r for r in caplog.records if r.message == "audit_failed"]
    position = audited.path_of(run).tokens - missing
    assert (vars(record)["cause"], vars(record)["position"]) == ("coverage", position)


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


def test_an_audit_runs_through_and_its_cost_is_made_up_for_before_the_next(
    decoder: Decoder,
) -> None:
    audited = Audited(decoder, tokens_per_minute=60)
    for seed in (1, 2):
        audited.driver.run(ids(seed, 200), closing=CLOSING)
    audited.driver.now += 64
    audited.auditor.step()
    while audited.auditor.holds_pages:
        assert audited.auditor.wait_s() == 0.0
        audited.auditor.step()
    assert audited.auditor.values["audited_tokens"] == 210
    wait_s = audited.auditor.wait_s()
    assert wait_s is not None
    assert wait_s > 200, "60 tokens a minute"


def test_budget_is_saved_up_for_a_minute_and_demands_take_nothing_of_it(decoder: Decoder) -> None:
    audited = Audited(decoder, tokens_per_minute=600)
    runs = [audited.driver.run(ids(seed, 70), closing=CLOSING) for seed in range(12)]
    audited.driver.now += 86_400
    path = audited.path_of(runs[0])
    assert audited.auditor.wait_s() == 0.0
    audited.audit(path)
    done = audited.auditor.values["audited_tokens"]
    for _ in range(500):
        audited.auditor.step()
    # The last audit runs through, and none begins with less than a slice.
    assert 600 - 64 <= audited.auditor.values["audited_tokens"] - done < 600 + path.tokens


def test_demands_are_answered_in_turn_and_only_so_many_wait(audited: Audited) -> None:
    driver, auditor = audited.driver, audited.auditor
    paths = [audited.path_of(driver.run(ids(seed, 40), closing=CLOSING)) for seed in (1, 2, 3)]
    answers: list[list[AuditResult]] = []
    unknown = CachedPath(token_ids=tokens.pack(ids(9, 30)), stretches=((b"nobody", 30),))
    auditor.demand(unknown, 0, answers.append, wait_s=60)
    auditor.demand(None, 10_000, answers.append, wait_s=60)
    for _ in range(DEMANDS_MAX - 2):
        auditor.demand(paths[0], 0, answers.append, wait_s=60)
    with pytest.raises(Conflict, match="wait for idle time"):
        auditor.demand(paths[0], 0, answers.append, wait_s=60)
    for _ in range(1000):
        auditor.step()
    nothing, sampled, *asked = answers
    assert nothing == []
    assert sorted(result.tokens for result in sampled) == [path.tokens for path in paths]
    assert [result.tokens for (result,) in asked] == [paths[0].tokens] * (DEMANDS_MAX - 2)
    assert auditor.values["audits"] == DEMANDS_MAX + 1


def test_a_demand_is_not_answered_with_the_audit_that_was_under_way(decoder: Decoder) -> None:
    audited = Audited(decoder, tokens_per_minute=60)
    first, second = (
        audited.path_of(audited.driver.run(ids(seed, count), closing=CLOSING))
        for seed, count in ((1, 70), (2, 40))
    )
    audited.driver.now += 600
    audited.auditor._sample._paths = [first]
    audited.auditor.step()
    assert audited.auditor.holds_pages
    assert audited.audit(second).tokens == second.tokens
    assert audited.auditor.values["audits"] == 2


def test_an_audit_that_gave_way_to_a_request_is_done_later(audited: Audited) -> None:
    path = audited.path_of(audited.driver.run(ids(1, 70), closing=CLOSING))
    answers: list[list[AuditResult]] = []
    audited.auditor.demand(path, 0, answers.append, wait_s=60)
    audited.auditor.step()
    assert audited.auditor.holds_pages
    audited.auditor.give_way()
    assert audited.driver.index.stats()["pages_leased"] == 0
    for _ in range(20):
        audited.auditor.step()
    ((result,),) = answers
    assert (result.cause, result.tokens) == (None, path.tokens)


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.int8])
def test_ordinary_traffic_raises_no_alarm(decoder: Decoder, kv_dtype: torch.dtype) -> None:
    """Turns that go on, branch, are cancelled, preempted, evicted and restored, with audits between."""
    audited = Audited(
        decoder,
        tokens_per_minute=10_000,
        pages=24,
        host_slots=30,
        kv_dtype=kv_dtype,
        running_max=3,
    )
    driver, source = audited.driver, random.Random(5)
    heads: list[list[int]] = [ids(seed, 20) for seed in range(3)]
    for turn in range(30):
        begun = source.choice(heads)
        prompt = [
            *begun[: source.randrange(1, len(begun) + 1)],
            *ids(turn, source.randrange(1, 30)),
        ]
        batch = [driver.submit(prompt[-200:], closing=CLOSING, conversation=b"%d" % (turn % 4))]
        if source.random() < 0.5:
            batch.append(driver.submit(ids(turn + 1, 90), new_tokens_max=20, priority="batch"))
        for _ in range(source.randrange(1, 12)):
            driver.step()
        if source.random() < 0.3:
            driver.cancel(batch[0], source.randrange(3))
        driver.finish()
        heads.append([*prompt[-200:], *driver.reply(batch[0]), *CLOSING][-200:])
        for _ in range(source.randrange(20)):
            driver.now += 1
            audited.auditor.step()
        audited.auditor.give_way()
        driver.check()
    values = audited.auditor.values
    assert values["audits"] > 10
    assert values["audit_failures"] == 0
    assert driver.tiers.stats()["tier_restored_pages"] > 0


def test_what_an_audit_remembers_stays_bounded(decoder: Decoder) -> None:
    audited = Audited(decoder)
    for seed in range(40):
        audited.driver.run(ids(seed, 20), new_tokens_max=1)
    sample = audited.auditor._sample
    assert len(sample) == PATHS_MAX
