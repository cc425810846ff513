"""A quantile of all observations in an arm, where each user made many: latency's median and tail.

Never: a quantile of users' means, which hides the slow requests.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from appliance.experiment.stats.estimates import Estimate, raw_estimate
from appliance.experiment.stats.moments import Floats, Moments

ERRORS = 1.96
"""Standard errors to each side at which the spread of the quantile is read off."""

Rows = NDArray[np.integer]


def quantile_estimate(
    user: Rows, value: Floats, count: NDArray[np.int64], share: float
) -> Estimate | None:
    """The value below which a `share` (0 to 1) of one arm's observations lies; its unit is the user.

    `user`, `value`, `count`: one row for `count` > 0 observations of `value` made of a user. Which share
    of the observations lies below the value is a ratio of sums by user, whose error the delta method
    gives; that share's interval is carried over to the values (Woodruff, JASA 1952; for clusters of users
    Deng, Knoblich & Lu, KDD 2018, section 4), so no density is estimated. None where the interval leaves
    what was observed: too few users for so far out a quantile.
    """
    values, place = np.unique(value, return_inverse=True)
    held = np.bincount(place, weights=count)
    total = held.sum()
    # In the middle of each value's own observations, straight between: equal values are no steps.
    middle = (np.cumsum(held) - held / 2) / total
    if not middle[0] < share < middle[-1]:
        return None
    first = int(np.searchsorted(middle, share, side="right")) - 1
    along = (share - middle[first]) / (middle[first + 1] - middle[first])
    below = np.zeros(len(values))
    below[:first] = 1.0
    below[first] = 0.5 + along / 2
    below[first + 1] = along / 2

    made = np.bincount(user, weights=count)
    under = np.bincount(user, weights=count * below[place])
    present = made > 0
    if present.sum() < 2:
        return None
    users = raw_estimate(Moments.of(np.stack([under[present], made[present]], axis=1)))
    error = ERRORS * float(np.sqrt(users.variance / users.count))
    if not middle[0] < share - error < share + error < middle[-1]:
        return None
    low, at, high = np.interp([share - error, share, share + error], middle, values)
    spread = (high - low) / (2 * ERRORS)
    return Estimate(
        value=np.asarray(at), variance=np.asarray(spread**2 * users.count), count=users.count
    )
