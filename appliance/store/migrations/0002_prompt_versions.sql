-- Prompt versions and the labels that point at them: the operator's, one copy for all tenants. They are
-- small and belong to no tenant, so on a distributed PostgreSQL every node has them whole.

-- What a conversation's prompts are made with from its first turn on; null until then. Those that it was
-- asked to leave are kept, so that all that was ever cached of it can be found.
ALTER TABLE appliance.conversations
    ADD COLUMN prompt_version text CHECK (octet_length(prompt_version) = 64),
    ADD COLUMN left_prompt_versions text[];

CREATE TABLE appliance.prompt_versions (
    name text NOT NULL CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,63}$'),
    version text NOT NULL CHECK (version ~ '^[0-9a-f]{64}$'),
    author text NOT NULL CHECK (char_length(author) BETWEEN 1 AND 200),
    message text NOT NULL CHECK (char_length(message) BETWEEN 1 AND 2000),
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (name, version)
);

CREATE TABLE appliance.prompt_files (
    name text NOT NULL,
    version text NOT NULL,
    path text NOT NULL CHECK (octet_length(path) BETWEEN 1 AND 200),
    content bytea NOT NULL,
    PRIMARY KEY (name, version, path),
    FOREIGN KEY (name, version) REFERENCES appliance.prompt_versions
);

CREATE TABLE appliance.prompt_labels (
    name text NOT NULL,
    label text NOT NULL CHECK (label ~ '^[a-z][a-z0-9_.-]{0,63}$'),
    version text NOT NULL,
    protected boolean NOT NULL,
    PRIMARY KEY (name, label),
    FOREIGN KEY (name, version) REFERENCES appliance.prompt_versions
);

-- What happened to labels. `from_version` is null where a label was made; `move_id` grows with time and
-- tells servers that something moved.
CREATE TABLE appliance.prompt_moves (
    move_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    label text NOT NULL,
    from_version text,
    to_version text NOT NULL,
    protected boolean NOT NULL,
    author text NOT NULL CHECK (char_length(author) BETWEEN 1 AND 200),
    message text NOT NULL CHECK (char_length(message) BETWEEN 1 AND 2000),
    moved_at timestamptz NOT NULL DEFAULT now(),
    FOREIGN KEY (name, to_version) REFERENCES appliance.prompt_versions
);

CREATE INDEX prompt_moves_label ON appliance.prompt_moves (name, label, move_id);

-- A version that a conversation is pinned to, and the record of who moved what, stay as they were written.
CREATE FUNCTION appliance.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of % are never changed or removed', TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END
$$;

CREATE TRIGGER immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON appliance.prompt_versions
    FOR EACH STATEMENT EXECUTE FUNCTION appliance.refuse_change();
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON appliance.prompt_files
    FOR EACH STATEMENT EXECUTE FUNCTION appliance.refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON appliance.prompt_moves
    FOR EACH STATEMENT EXECUTE FUNCTION appliance.refuse_change();
