"""Fixtures of the client's tests."""

from __future__ import annotations

from tests.engine_fixtures import decoder, model_directory

__all__ = ["decoder", "model_directory"]
