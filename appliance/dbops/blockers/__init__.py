"""What keeps transaction IDs from being freed, and damage that stops a VACUUM."""
