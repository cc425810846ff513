-- What a search looks messages up by: hashes of their letter groups (store/search_terms.py), which no
-- length or language of a text can make too large for an index. Written behind the turns, never in them,
-- so that it can hold up or refuse none. All of a tenant is in one partition; who deletes a message
-- deletes its row here.
CREATE TABLE appliance.search_messages (
    tenant text NOT NULL,
    conversation_id uuid NOT NULL,
    message_id uuid NOT NULL,
    terms integer[] NOT NULL,
    PRIMARY KEY (tenant, conversation_id, message_id),
    FOREIGN KEY (tenant, conversation_id, message_id)
        REFERENCES appliance.messages ON DELETE CASCADE
) PARTITION BY HASH (tenant);

CREATE INDEX search_messages_terms ON appliance.search_messages USING gin (terms);

-- How far a tenant's conversations are in there, by the time of their last change.
CREATE TABLE appliance.search_progress (
    tenant text PRIMARY KEY,
    through timestamptz NOT NULL
);

DO $$
BEGIN
    FOR part IN 0..15 LOOP
        EXECUTE format(
            'CREATE TABLE appliance.search_messages_%s PARTITION OF appliance.search_messages '
            'FOR VALUES WITH (MODULUS 16, REMAINDER %s)',
            to_char(part, 'FM00'), part);
    END LOOP;
END
$$;
