-- name: relation_age
-- No row once it was dropped.
SELECT age(relfrozenxid) AS xid_age, mxid_age(relminmxid) AS mxid_age
  FROM pg_class
 WHERE oid = $1::oid;

-- name: database_age
SELECT age(datfrozenxid) AS xid_age, mxid_age(datminmxid) AS mxid_age
  FROM pg_database
 WHERE oid = $1::oid;

-- name: progress
-- How far a session's VACUUM is, and whether it waits for a page that somebody else has in use.
SELECT a.pid,
       a.wait_event_type = 'BufferPin' AS waits_for_page,
       v.heap_blks_total AS pages_total,
       v.heap_blks_scanned AS pages_scanned
  FROM pg_stat_activity AS a
  LEFT JOIN pg_stat_progress_vacuum AS v ON v.pid = a.pid
 WHERE a.pid = ANY ($1::int[]);

-- name: page_holders
-- The transactions that had relation $2 of database $1 open when a wait for one of its pages began, $3
-- seconds ago: one of them has the page in use, and PostgreSQL does not tell which.
SELECT a.pid,
       a.usename::text AS user_name,
       a.application_name AS application,
       a.state,
       a.xact_start AS begun,
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS transaction_s,
       extract(epoch FROM clock_timestamp() - a.query_start)::float8 AS query_s
  FROM pg_stat_activity AS a
 WHERE a.pid IN (SELECT l.pid
                   FROM pg_locks AS l
                  WHERE l.locktype = 'relation' AND l.granted AND l.relation = $2::oid
                    AND l.database IN (0, (SELECT oid FROM pg_database WHERE datname = $1::text)))
   AND a.xact_start < clock_timestamp() - make_interval(secs => $3::float8)
   AND a.backend_type <> 'autovacuum worker'
 ORDER BY a.xact_start;

-- name: give_page_up
-- Breaks off a VACUUM that still waits for a page.
SELECT pg_cancel_backend(pid)
  FROM pg_stat_activity
 WHERE pid = $1::int AND wait_event_type = 'BufferPin';

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

-- name: lock_databases
-- Where the lock on the whole cluster is taken: in the first that can be entered, the same for every run.
SELECT replace(datname::text, '\', '\\')::bytea AS name
  FROM pg_database
 WHERE datallowconn AND datconnlimit <> -2
 ORDER BY datistemplate, oid;

-- name: take_lock
SELECT pg_try_advisory_lock($1::bigint);

-- name: holds_lock
SELECT EXISTS (SELECT FROM pg_locks
                WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()
                  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                  AND classid = ($1::bigint >> 32)::oid
                  AND objid = ($1::bigint & 4294967295)::oid AND objsubid = 1);

-- name: lock_holder
SELECT a.pid,
       coalesce('from ' || host(a.client_addr), 'on the server''s machine') || ', since '
           || to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC' AS place
  FROM pg_locks AS l
  JOIN pg_stat_activity AS a ON a.pid = l.pid
 WHERE l.locktype = 'advisory' AND l.granted
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.classid = ($1::bigint >> 32)::oid AND l.objid = ($1::bigint & 4294967295)::oid
   AND l.objsubid = 1;

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
-- A filenode is that of table $1, of its TOAST, or of an index of one of the two. No row: of nothing known.
SELECT coalesce(i.indrelid, c.oid)::bigint AS relation_oid,
       CASE WHEN i.indexrelid IS NOT NULL THEN c.relname::text END AS index
  FROM pg_class AS c
  LEFT JOIN pg_index AS i ON i.indexrelid = c.oid
 WHERE pg_relation_filenode(c.oid) = $2::oid
   AND coalesce(i.indrelid, c.oid)
       IN ($1::oid, (SELECT reltoastrelid FROM pg_class WHERE oid = $1::oid));

-- name: indexes
-- Of table $1 and of its TOAST. A REINDEX gives each a new file, if it does not pass it over.
SELECT c.oid::bigint AS oid,
       pg_relation_filenode(c.oid)::bigint AS file,
       n.nspname::text AS schema,
       c.relname::text AS name,
       i.indisvalid AS valid
  FROM pg_index AS i
  JOIN pg_class AS c ON c.oid = i.indexrelid
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE i.indrelid IN ($1::oid, (SELECT reltoastrelid FROM pg_class WHERE oid = $1::oid))
 ORDER BY n.nspname, c.relname;

-- name: index_leftovers
-- What a REINDEX CONCURRENTLY that was broken off has left of table $1: an index half built, or one that
-- another has replaced. Nobody reads it, and every write pays for it. A partition's children have their own.
SELECT n.nspname::text AS schema, c.relname::text AS name, t.relkind::text = 't' AS toast
  FROM pg_index AS i
  JOIN pg_class AS c ON c.oid = i.indexrelid
  JOIN pg_class AS t ON t.oid = i.indrelid
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE i.indrelid IN ($1::oid, (SELECT reltoastrelid FROM pg_class WHERE oid = $1::oid))
   AND NOT i.indisvalid
   AND c.relname ~ '_cc(new|old)[0-9]*$';

-- name: own_settings
-- What ALTER SYSTEM had set before, of the settings $1. Reading the file takes a superuser.
SELECT name, setting
  FROM pg_file_settings
 WHERE name = ANY ($1::text[]) AND sourcefile LIKE '%/postgresql.auto.conf';

-- name: reload
SELECT pg_reload_conf();

-- name: without_effect
-- Of the settings $1 those that are not $2 although ALTER SYSTEM says so, and what says otherwise.
SELECT s.name, s.setting, s.source
  FROM unnest($1::text[], $2::text[]) AS w (name, wanted)
  JOIN pg_settings AS s ON s.name = w.name
 WHERE s.setting <> w.wanted
   AND s.source NOT IN ('configuration file', 'default');

-- name: page
-- One page as it lies in its file, the n-th of the table; files have a fixed number of pages. The control
-- file has a known number at its ninth byte: its order of bytes is that of all files.
SELECT p.path, p.number, p.page_bytes,
       (SELECT get_byte(pg_read_binary_file('global/pg_control', 8, 1), 0) = pg_control_version % 256
          FROM pg_control_system()) AS little_endian,
       pg_read_binary_file(p.path, p.number * p.page_bytes, p.page_bytes) AS content
  FROM (SELECT pg_relation_filepath($1::oid)
                   || CASE WHEN $2::bigint < s.pages THEN '' ELSE '.' || ($2::bigint / s.pages) END
                 AS path,
               $2::bigint % s.pages AS number,
               s.page_bytes
          FROM (SELECT current_setting('block_size')::bigint AS page_bytes,
                       pg_size_bytes(current_setting('segment_size'))
                           / current_setting('block_size')::bigint AS pages) AS s) AS p;
