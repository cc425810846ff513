"""Throw-away PostgreSQL clusters in named trouble: the operator's rehearsal, and the engine of the tests."""
