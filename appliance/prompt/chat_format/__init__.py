"""A model's chat template as a format, derived once; then messages to token ids without it."""
