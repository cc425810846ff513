"""Copies of a cluster: backups, the state at a moment, another major version."""
