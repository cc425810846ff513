-- Conversations and their messages. Every key starts with the distribution key, so that a statement
-- which names it touches one partition, here and on a distributed PostgreSQL.

CREATE SCHEMA IF NOT EXISTS appliance;

-- Partitioned by tenant alone: the newest conversations of a tenant are read from one partition.
CREATE TABLE appliance.conversations (
    tenant text NOT NULL CHECK (octet_length(tenant) BETWEEN 1 AND 512),
    conversation_id uuid NOT NULL,
    title text NOT NULL CHECK (char_length(title) <= 200),
    character_id text CHECK (octet_length(character_id) BETWEEN 1 AND 512),
    head_id uuid,
    anchor_id uuid,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, conversation_id)
) PARTITION BY HASH (tenant);

CREATE INDEX conversations_newest
    ON appliance.conversations (tenant, updated_at DESC, conversation_id DESC);

-- A message is written once and never changed. `depth` is 0 for a root; `turn_key` names the send
-- that wrote it. Text and token ids are in no index: a b-tree entry is limited to 2.7 kB.
CREATE TABLE appliance.messages (
    tenant text NOT NULL,
    conversation_id uuid NOT NULL,
    message_id uuid NOT NULL,
    parent_id uuid,
    turn_key uuid NOT NULL,
    depth integer NOT NULL CHECK (depth >= 0),
    role text NOT NULL CHECK (role IN ('system', 'user', 'assistant')),
    text text NOT NULL,
    token_ids bytea CHECK (octet_length(token_ids) % 4 = 0),
    tokenizer text,
    finish_reason text CHECK (finish_reason IN ('stop', 'length', 'cancelled', 'failed')),
    prompt_tokens integer CHECK (prompt_tokens >= 0),
    prefix_hit_tokens integer CHECK (prefix_hit_tokens BETWEEN 0 AND prompt_tokens),
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, conversation_id, message_id)
) PARTITION BY HASH (tenant, conversation_id);

-- The rule that makes a replay harmless: a send is stored once under its parent. A root's parent is
-- null, and nulls are distinct in a unique index before PostgreSQL 15, hence the two indexes. They begin
-- with the parent, which also finds a message's children; did they begin with the distribution key, a
-- planner without statistics would take them for the primary key and read whole conversations.
CREATE UNIQUE INDEX messages_turn
    ON appliance.messages (parent_id, turn_key, conversation_id, tenant);
CREATE UNIQUE INDEX messages_root_turn
    ON appliance.messages (turn_key, conversation_id, tenant) WHERE parent_id IS NULL;

-- Sixteen partitions: enough to spread vacuum and locks of one box, few enough to plan in no time.
DO $$
BEGIN
    FOR part IN 0..15 LOOP
        EXECUTE format(
            'CREATE TABLE appliance.conversations_%s PARTITION OF appliance.conversations '
            'FOR VALUES WITH (MODULUS 16, REMAINDER %s) WITH (fillfactor = 80)',
            to_char(part, 'FM00'), part);
        EXECUTE format(
            'CREATE TABLE appliance.messages_%s PARTITION OF appliance.messages '
            'FOR VALUES WITH (MODULUS 16, REMAINDER %s)',
            to_char(part, 'FM00'), part);
    END LOOP;
END
$$;
