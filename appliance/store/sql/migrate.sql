-- name: lock_migrations
-- One process migrates at a time; held to the end of the transaction.
SELECT pg_advisory_xact_lock(7235419003812::bigint);

-- name: has_migrations
SELECT to_regclass('appliance.migrations') IS NOT NULL;

-- name: create_migrations
CREATE SCHEMA IF NOT EXISTS appliance;
CREATE TABLE appliance.migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- name: schema_version
SELECT coalesce(max(version), 0) FROM appliance.migrations;

-- name: record_migration
INSERT INTO appliance.migrations (version, name) VALUES ($1::integer, $2::text);
