-- name: cluster
-- The newest finished transaction plus one: asking for it takes no transaction ID.
SELECT clock_timestamp() AS taken_at,
       current_setting('server_version_num')::int AS version,
       current_setting('server_version') AS version_text,
       pg_is_in_recovery() AS in_recovery,
       (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS superuser,
       pg_has_role(current_user, 'pg_read_all_stats', 'usage') AS sees_sessions,
       current_setting('block_size')::int AS block_size,
       pg_size_bytes(current_setting('segment_size')) AS segment_bytes,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next_xid,
       (d.datminmxid::text::bigint + mxid_age(d.datminmxid)) % 4294967296 AS next_mxid,
       ((CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
              ELSE pg_current_wal_lsn() END) - '0/0'::pg_lsn)::bigint AS wal_position,
       CASE WHEN pg_has_role(current_user, 'pg_read_all_stats', 'usage')
            THEN EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'autovacuum launcher')
        END AS autovacuum_launcher,
       coalesce((SELECT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'wal_compression'), false)
         AS has_lz4,
       extract(epoch FROM pg_postmaster_start_time())::float8 AS server_started_s,
       current_database()::text AS database
  FROM pg_database AS d
 WHERE d.datname = current_database();

-- name: control
SELECT (SELECT system_identifier FROM pg_control_system())::text AS system_id,
       next_multi_offset::text::bigint AS next_offset,
       age(oldest_xid) AS oldest_xid_age,
       mxid_age(oldest_multi_xid) AS oldest_mxid_age
  FROM pg_control_checkpoint();

-- name: member_segments
SELECT name FROM pg_ls_dir('pg_multixact/members') AS name;

-- name: settings
SELECT name, setting FROM pg_settings WHERE name = ANY ($1::text[]);

-- name: databases
-- Names come as the bytes that they are, here and below: those of a shared catalog are in the encoding of
-- whichever database they were given in, and in a database of SQL_ASCII they are in none.
-- All of them: one that takes no connections (template0) stops the cluster like any other. -2 marks one
-- whose DROP DATABASE was interrupted; the server leaves it out of the limit too.
SELECT oid::bigint AS oid,
       replace(datname::text, '\', '\\')::bytea AS name,
       datallowconn AND datconnlimit <> -2 AS connectable,
       datconnlimit = -2 AS dropping,
       datistemplate AS template,
       age(datfrozenxid) AS xid_age,
       mxid_age(datminmxid) AS mxid_age
  FROM pg_database
 ORDER BY age(datfrozenxid) DESC, datname;

-- name: sessions
SELECT a.pid,
       a.backend_type AS backend,
       replace(a.datname::text, '\', '\\')::bytea AS database,
       replace(a.usename::text, '\', '\\')::bytea AS user_name,
       a.application_name AS application,
       host(a.client_addr) AS client,
       a.state,
       age(a.backend_xmin) AS xmin_age,
       age(a.backend_xid) AS xid_age,
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS transaction_s,
       extract(epoch FROM clock_timestamp() - a.state_change)::float8 AS state_s,
       -- As bytes: it is in the encoding of its own database, which this session's need not be.
       textsend(a.query) AS query,
       a.pid = pg_backend_pid() AS own,
       EXISTS (SELECT FROM pg_stat_progress_vacuum AS v WHERE v.pid = a.pid) AS vacuuming
  FROM pg_stat_activity AS a
 WHERE a.datid IS NOT NULL OR a.backend_type = 'walsender' OR a.backend_xmin IS NOT NULL
 ORDER BY a.pid;

-- name: session_numbers
-- Since 16 the number is the N of pg_temp_N. Before, it only counts the processes in the order of their
-- numbers, and one that is in a transaction tells its own as the first half of its virtual id.
SELECT s.number,
       a.pid,
       a.datid::bigint AS database_oid,
       a.backend_type AS backend,
       a.application_name AS application,
       a.backend_start AS started,
       v.number AS virtual_number
  FROM pg_stat_get_backend_idset() AS s (number)
  JOIN pg_stat_activity AS a ON a.pid = pg_stat_get_backend_pid(s.number)
  LEFT JOIN (SELECT pid, split_part(virtualxid, '/', 1)::int AS number
               FROM pg_locks
              WHERE locktype = 'virtualxid' AND mode = 'ExclusiveLock' AND granted) AS v
    ON v.pid = a.pid
 ORDER BY s.number;

-- name: temp_files
-- When the newest file of each schema of temporary tables was written; NULL: it has none (left any more).
SELECT n.nspname::text AS schema,
       max((pg_stat_file(pg_relation_filepath(c.oid), true)).modification) AS modified
  FROM pg_class AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.relpersistence = 't' AND c.relkind = 'r' AND c.relfrozenxid <> '0'::xid
 GROUP BY n.nspname;

-- name: prepared
SELECT replace(gid::text, '\', '\\')::bytea AS gid,
       replace(database::text, '\', '\\')::bytea AS database,
       replace(owner::text, '\', '\\')::bytea AS owner,
       age(transaction) AS xid_age,
       extract(epoch FROM clock_timestamp() - prepared)::float8 AS prepared_s
  FROM pg_prepared_xacts
 ORDER BY age(transaction) DESC, gid;

-- name: slots
SELECT slot_name::text AS name,
       slot_type = 'logical' AS logical,
       plugin::text AS plugin,
       replace(database::text, '\', '\\')::bytea AS database,
       temporary,
       active_pid,
       age(xmin) AS xmin_age,
       age(catalog_xmin) AS catalog_xmin_age,
       wal_status
  FROM pg_replication_slots
 ORDER BY slot_name;

-- name: standbys
SELECT r.pid,
       r.application_name AS application,
       host(r.client_addr) AS client,
       r.state,
       r.sync_state,
       s.slot_name::text AS slot,
       age(r.backend_xmin) AS xmin_age
  FROM pg_stat_replication AS r
  LEFT JOIN pg_replication_slots AS s ON s.active_pid = r.pid
 ORDER BY r.pid;

-- name: locks
-- The modes that conflict with VACUUM's SHARE UPDATE EXCLUSIVE. A prepared transaction has no pid; the lock
-- on its own XID has the same virtual id.
SELECT l.database::bigint AS database_oid,
       l.relation::bigint AS relation_oid,
       l.mode,
       l.granted,
       l.pid,
       replace(p.gid::text, '\', '\\')::bytea AS gid
  FROM pg_locks AS l
  LEFT JOIN (SELECT x.gid, t.virtualtransaction
               FROM pg_prepared_xacts AS x
               JOIN pg_locks AS t
                 ON t.locktype = 'transactionid' AND t.pid IS NULL AND t.granted
                AND t.transactionid = x.transaction) AS p
    ON l.pid IS NULL AND p.virtualtransaction = l.virtualtransaction
 WHERE l.locktype = 'relation'
   AND l.mode IN ('ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock',
                  'ExclusiveLock', 'AccessExclusiveLock')
   AND l.pid IS DISTINCT FROM pg_backend_pid()
 ORDER BY l.database, l.relation, l.granted DESC, l.pid;

-- name: vacuums
SELECT v.pid,
       replace(v.datname::text, '\', '\\')::bytea AS database,
       v.relid::bigint AS relation_oid,
       coalesce(a.backend_type = 'autovacuum worker', false) AS automatic,
       coalesce(a.backend_type = 'autovacuum worker'
                AND a.query LIKE '%(to prevent wraparound)', false) AS to_prevent_wraparound
  FROM pg_stat_progress_vacuum AS v
  LEFT JOIN pg_stat_activity AS a ON a.pid = v.pid
 ORDER BY v.pid;

-- name: relations
-- pg_class has relallfrozen since 18: where it is not a column of `own`, the name is that of `absent`.
SELECT c.oid::bigint AS oid,
       replace(n.nspname::text, '\', '\\')::bytea AS schema,
       replace(c.relname::text, '\', '\\')::bytea AS name,
       c.relkind::text AS kind,
       c.reltoastrelid::bigint AS toast,
       c.relpersistence::text AS persistence,
       c.relisshared AS shared,
       age(c.relfrozenxid) AS xid_age,
       mxid_age(c.relminmxid) AS mxid_age,
       c.relpages AS pages,
       c.relallvisible AS pages_all_visible,
       frozen.relallfrozen AS pages_all_frozen,
       pg_stat_get_live_tuples(c.oid) AS rows_live,
       pg_stat_get_dead_tuples(c.oid) AS rows_dead,
       c.reloptions AS options,
       pg_stat_get_last_autovacuum_time(c.oid) AS last_autovacuum
  FROM (VALUES (NULL::int)) AS absent (relallfrozen)
 CROSS JOIN pg_class AS c
 CROSS JOIN LATERAL (SELECT relallfrozen FROM (SELECT c.*) AS own) AS frozen
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'm', 't') AND c.relfrozenxid <> '0'::xid;

-- name: extensions
SELECT e.extname::text AS name, replace(n.nspname::text, '\', '\\')::bytea AS schema
  FROM pg_extension AS e
  JOIN pg_namespace AS n ON n.oid = e.extnamespace
 WHERE e.extname IN ('amcheck', 'pg_surgery');

-- name: first_file_bytes
-- From the files, which needs no lock on a relation: pg_relation_size would wait behind an ACCESS EXCLUSIVE.
SELECT c.oid::bigint AS oid, (pg_stat_file(pg_relation_filepath(c.oid), true)).size AS bytes
  FROM pg_class AS c
 WHERE c.relkind IN ('r', 'm', 't') AND c.relfrozenxid <> '0'::xid;

-- name: later_file_bytes
-- Of the relations $1, whose first file is full: a file is followed by another only then.
WITH RECURSIVE file AS (
    SELECT oid, pg_relation_filepath(oid) AS path, 1 AS number,
           (pg_stat_file(pg_relation_filepath(oid) || '.1', true)).size AS bytes
      FROM unnest($1::oid[]) AS full_one (oid)
    UNION ALL
    SELECT f.oid, f.path, f.number + 1,
           (pg_stat_file(f.path || '.' || (f.number + 1), true)).size
      FROM file AS f
     WHERE f.bytes = (SELECT pg_size_bytes(current_setting('segment_size')))
)
SELECT oid::bigint AS oid, sum(bytes)::bigint AS bytes
  FROM file
 GROUP BY oid
HAVING sum(bytes) IS NOT NULL;
