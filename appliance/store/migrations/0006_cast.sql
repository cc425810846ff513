-- Where the window of a reply's prompt began: the first message that was still in it, null when none was cut
-- (or the reply is older than this column). It belongs to the reply, so that each branch has its own. `speaker`
-- is the member of a group whose message it is. Nullable without defaults, so that no row is touched.
ALTER TABLE appliance.messages
    ADD COLUMN anchor_id uuid,
    ADD COLUMN speaker text CHECK (octet_length(speaker) BETWEEN 1 AND 64);

-- What a user had set before, the latest first: prompts were made with it, and all that was ever cached of a
-- conversation can be found. `is_untraceable`: more was cached than these rows tell, for messages were removed
-- that prompts began with, or scenes were forgotten.
ALTER TABLE appliance.conversations
    ADD COLUMN left_scenes jsonb[],
    ADD COLUMN is_untraceable boolean;
