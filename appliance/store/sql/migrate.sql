-- name: lock_migrations
-- One process migrates at a time; held to the end of the transaction.
SELECT pg_advisory_xact_lock(7235419003812::bigint);

-- name: has_migrations
-- The table, with the column that it got later.
SELECT EXISTS (
    SELECT FROM pg_attribute
    WHERE attrelid = to_regclass('appliance.migrations') AND attname = 'usable_from' AND NOT attisdropped
);

-- name: create_migrations
CREATE SCHEMA IF NOT EXISTS appliance;
CREATE TABLE IF NOT EXISTS appliance.migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
-- Programs that know this version can use the schema; null: its own alone and later ones.
ALTER TABLE appliance.migrations ADD COLUMN IF NOT EXISTS usable_from integer;

-- name: schema_version
-- The newest migration, and the oldest version that a program must know to use what all of them made.
SELECT
    coalesce(max(version), 0) AS version,
    coalesce(max(coalesce(usable_from, version)), 0) AS usable_from
FROM appliance.migrations;

-- name: record_migration
INSERT INTO appliance.migrations (version, name, usable_from)
VALUES ($1::integer, $2::text, $3::integer);

-- name: made_at
SELECT applied_at FROM appliance.migrations WHERE version = 1;

-- name: has_schema
SELECT to_regclass('appliance.migrations') IS NOT NULL;

-- name: newest_migration
-- Of a schema of any age: only `schema_version` needs the column that came later.
SELECT max(version) FROM appliance.migrations;
