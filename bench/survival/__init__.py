"""A whole product under hard conditions, for `bench.chaos` and `bench.soak`."""
