-- name: create
CREATE TABLE public.last_row (id integer PRIMARY KEY);
CREATE TABLE pending (gid text NOT NULL);
CREATE TABLE messages (
    id bigint PRIMARY KEY,
    conversation integer NOT NULL,
    body text NOT NULL
);
CREATE INDEX messages_conversation ON messages (conversation);
CREATE TABLE texts (id integer PRIMARY KEY, body text NOT NULL) WITH (autovacuum_enabled = false);
CREATE UNLOGGED TABLE drafts (id integer PRIMARY KEY, body text NOT NULL);
CREATE TABLE events (id integer NOT NULL, kind text NOT NULL) PARTITION BY HASH (id);
CREATE TABLE events_0 PARTITION OF events FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE events_1 PARTITION OF events FOR VALUES WITH (MODULUS 2, REMAINDER 1);

-- name: load
-- Rows to count and to hash: short ones with deleted ones among them, and long ones out of line.
INSERT INTO public.last_row (id) VALUES (1);
INSERT INTO messages (id, conversation, body)
SELECT n, n % 100, repeat(md5(n::text), 5) FROM generate_series(1, 20000) AS n;
DELETE FROM messages WHERE id > 18000 AND id % 2 = 0;
INSERT INTO texts (id, body)
SELECT n, (SELECT string_agg(md5((n * m)::text), '') FROM generate_series(1, 600) AS m)
FROM generate_series(1, 100) AS n;
INSERT INTO events (id, kind) SELECT n, 'sent' FROM generate_series(1, 500) AS n;
CREATE MATERIALIZED VIEW per_conversation AS
SELECT conversation, count(*) AS messages FROM messages GROUP BY conversation;

-- name: spend_xids
-- A subtransaction that locks a row takes an XID; rolled back, it leaves nothing else behind. The
-- first XID that is refused ends the block.
DO $$
BEGIN
    FOR n IN 1..40000 LOOP
        BEGIN
            PERFORM id FROM public.last_row FOR UPDATE;
            RAISE division_by_zero;
        EXCEPTION WHEN division_by_zero THEN NULL;
        END;
    END LOOP;
END
$$;

-- name: spend_multixacts
-- Of the first rows as many as the setting drill.rows says: one that is locked by a transaction and again by
-- its subtransaction has a multixact of two members.
DO $$
BEGIN
    PERFORM id FROM messages WHERE id <= current_setting('drill.rows')::int FOR KEY SHARE;
    FOR n IN 1..current_setting('drill.rows')::int LOOP
        BEGIN
            PERFORM id FROM messages WHERE id = n FOR SHARE;
        EXCEPTION WHEN division_by_zero THEN NULL;
        END;
    END LOOP;
END
$$;

-- name: databases
SELECT datname AS name, datallowconn AS connectable FROM pg_database ORDER BY datname;
