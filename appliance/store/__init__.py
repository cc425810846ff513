"""Conversations in PostgreSQL."""
