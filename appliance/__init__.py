"""A single-box chat appliance: streaming chat, a token-exact prefix cache, a ledger in PostgreSQL."""
