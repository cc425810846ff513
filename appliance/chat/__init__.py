"""One turn of a conversation, front to back."""
