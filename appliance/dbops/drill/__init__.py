"""Throw-away PostgreSQL clusters in named trouble: the operator's rehearsal, the tests' engine."""
