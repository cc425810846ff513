"""Statistics of experiments: pure functions on arrays, with the user (or the period) as the unit."""
