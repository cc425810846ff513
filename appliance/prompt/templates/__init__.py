"""Prompt templates: files that an operator writes, compiled once, rendered with a chat's values."""
