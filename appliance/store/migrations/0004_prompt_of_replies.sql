-- What the prompt of a reply was made with: the version of the character, and a digest of what the user had
-- set. Null: a reply from before there was this column, and what is no reply. Nullable without a default, so
-- that no row is touched.
ALTER TABLE appliance.messages
    ADD COLUMN prompt_version text CHECK (octet_length(prompt_version) = 64),
    ADD COLUMN scene_digest bytea CHECK (octet_length(scene_digest) = 16);
