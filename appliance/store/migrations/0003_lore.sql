-- Texts that stand in prompts right before a user's message, written in its turn and never changed: a
-- list of {"name", "text", "entry"}. Null: none. Nullable without a default, so that no row is touched.
ALTER TABLE appliance.messages ADD COLUMN lore jsonb;

-- What a user has set for a conversation: {"persona", "note", "members"}. Null: nothing.
ALTER TABLE appliance.conversations ADD COLUMN scene jsonb;
