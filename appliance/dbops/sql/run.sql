-- name: relation_age
-- No row once it was dropped.
SELECT age(relfrozenxid) AS xid_age, mxid_age(relminmxid) AS mxid_age
  FROM pg_class
 WHERE oid = $1::oid;

-- name: database_age
SELECT age(datfrozenxid) AS xid_age, mxid_age(datminmxid) AS mxid_age
  FROM pg_database
 WHERE datname = $1::text;

-- name: progress
SELECT pid, heap_blks_total AS pages_total, heap_blks_scanned AS pages_scanned
  FROM pg_stat_progress_vacuum
 WHERE pid = ANY ($1::int[]);

-- name: cancel
SELECT pg_cancel_backend(pid)
  FROM unnest($1::int[]) AS own (pid);

-- name: keep_out
-- The senders of a standby that comes back with the old snapshot for which it was ended with consent.
SELECT pg_terminate_backend(pid, 1000)
  FROM pg_stat_replication
 WHERE application_name = $1::text
   AND host(client_addr) IS NOT DISTINCT FROM $2::text
   AND age(backend_xmin) >= $3::int;

-- name: temp_table
-- No row once it was dropped.
SELECT format('%I.%I', n.nspname, c.relname)
  FROM pg_class AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.oid = $1::oid AND c.relpersistence = 't';

-- name: end_autovacuum_of
-- An autovacuum that has the lock that a VACUUM waited for in vain. What it has frozen stays so.
SELECT pg_terminate_backend(a.pid, 5000) AS ended
  FROM pg_locks AS l
  JOIN pg_stat_activity AS a ON a.pid = l.pid
 WHERE l.locktype = 'relation'
   AND l.relation = $1::oid
   AND l.database IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
   AND l.granted
   AND a.backend_type = 'autovacuum worker';

-- name: relation_of_file
-- A filenode is the relation's own or, for an index, of the table $1. NULL: of no relation that is known.
SELECT c.oid = $1::oid AS own, c.relname::text AS name
  FROM pg_class AS c
  LEFT JOIN pg_index AS i ON i.indexrelid = c.oid
 WHERE pg_relation_filenode(c.oid) = $2::oid
   AND (c.oid = $1::oid OR i.indrelid = $1::oid);

-- name: own_settings
-- What ALTER SYSTEM had set before, of the settings $1. Reading the file takes a superuser.
SELECT name, setting
  FROM pg_file_settings
 WHERE name = ANY ($1::text[]) AND sourcefile LIKE '%/postgresql.auto.conf';

-- name: reload
SELECT pg_reload_conf();

-- name: page
-- One page as it lies in its file, the n-th of the table; files have a fixed number of pages.
SELECT pg_read_binary_file(
           pg_relation_filepath($1::oid)
               || CASE WHEN $2::bigint < s.pages THEN '' ELSE '.' || ($2::bigint / s.pages) END,
           ($2::bigint % s.pages) * s.page_bytes, s.page_bytes)
  FROM (SELECT current_setting('block_size')::bigint AS page_bytes,
               pg_size_bytes(current_setting('segment_size'))
                   / current_setting('block_size')::bigint AS pages) AS s;
