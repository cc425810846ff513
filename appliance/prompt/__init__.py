"""From messages and templates to segments of token ids."""
