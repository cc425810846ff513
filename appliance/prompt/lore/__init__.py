"""Lorebooks: texts that a conversation calls up by their keys, and how they get into its prompts."""
