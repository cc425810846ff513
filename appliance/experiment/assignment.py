"""Who is in an experiment, and in which arm: a pure function of its definition and the user.

Nothing is drawn and nothing is looked up: any process, today or in a year, gives the same answer. Never:
reads or writes anything.

Two places in [0, 1), each the first 64 bits of a SHA-256 over a salt and the user, every piece after its
length (4 bytes, little-endian), so that no two of them can be taken for another two:

* by the layer's salt: experiments of one layer have parts of it that do not overlap, so nobody is in
  two of them. An experiment lets in those below its coverage, so a ramp only adds users;
* by the experiment's salt: which arm. It does not depend on the first, so a ramp changes nobody's arm,
  and users of an earlier experiment are spread evenly over the arms of the next.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import accumulate
from types import MappingProxyType

from appliance.store.experiment_records import Arm, Experiment

_PLACES = 1 << 64
_END = b"\xff" * 33
"""Above every place."""


def unit_of(tenant: str, user: str | None) -> bytes:
    """A user as it is hashed; the tenant itself where its application tells no users."""
    encoded = (user or "").encode()
    return _framed(tenant) + len(encoded).to_bytes(4, "little") + encoded


def tester_of(tenant: str, user: str | None) -> str:
    """A user as `overrides` name one; `appliance.is_tester` of the database says the same."""
    return f"{tenant}/{user}" if user else tenant


def _place(salt: bytes, unit: bytes) -> bytes:
    """The place of a user under a framed salt, as bytes: compared as they are, they are in its order."""
    return sha256(salt + unit).digest()


def _bound(share: float) -> bytes:
    """What places below `share` are less than."""
    return _END if share >= 1.0 else int(share * _PLACES).to_bytes(8, "big")


@lru_cache(maxsize=1024)
def _framed(text: str) -> bytes:
    encoded = text.encode()
    return len(encoded).to_bytes(4, "little") + encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigner:
    """An experiment made ready to assign: `[start, end)` are the places in its layer that it lets in,
    `bounds` where the share of each arm but the last one ends."""

    experiment: Experiment
    layer_salt: bytes
    arm_salt: bytes
    start: bytes
    end: bytes
    bounds: tuple[bytes, ...]
    arms: tuple[Arm, ...]
    overrides: Mapping[str, Arm]
    excluded: tuple[Assigner, ...] = ()

    @classmethod
    def of(cls, experiment: Experiment, excluded: tuple[Assigner, ...] = ()) -> Assigner:
        """Of a definition; users of `excluded` are left out, and their testers."""
        start, arms = experiment.range_start, experiment.arms
        bounds = tuple(accumulate(arm.share for arm in arms))
        by_name = {arm.name: arm for arm in arms}
        overrides = {user: by_name[arm] for user, arm in experiment.overrides.items()}
        return cls(
            experiment=experiment,
            layer_salt=_framed("layer") + _framed(experiment.layer),
            arm_salt=_framed("experiment") + _framed(experiment.salt),
            start=_bound(start),
            end=_bound(start + experiment.coverage * (experiment.range_end - start)),
            # The last arm has the rest: shares that sum to a hair below 1 leave nobody without one.
            bounds=tuple(map(_bound, bounds[:-1])),
            arms=arms,
            overrides=MappingProxyType(overrides),
            excluded=excluded,
        )

    def arm(self, tenant: str, user: str | None) -> Arm | None:
        """The arm of a user; None for one who is not in the experiment, or whose arm is paused."""
        fixed = self._fixed(tenant, user)
        if fixed is not None:
            return None if fixed.paused_at is not None else fixed
        unit = unit_of(tenant, user)
        if not self.takes(unit):
            return None
        for other in self.excluded:
            if other.takes(unit) or other._fixed(tenant, user) is not None:
                return None
        arm = self.arms[bisect_right(self.bounds, _place(self.arm_salt, unit))]
        return None if arm.paused_at is not None else arm

    def _fixed(self, tenant: str, user: str | None) -> Arm | None:
        """The arm of a tester."""
        return self.overrides.get(tester_of(tenant, user)) if self.overrides else None

    def takes(self, unit: bytes) -> bool:
        """Whether a user is in its part of the layer, and let in."""
        if self.end is _END and not any(self.start):
            return True
        return self.start <= _place(self.layer_salt, unit) < self.end
