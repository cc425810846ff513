-- name: tables
-- Every table that holds rows itself; a partitioned table's are in its partitions. $1: temporary tables of
-- other sessions cannot be read.
SELECT c.oid::bigint AS oid, n.nspname::text AS schema, c.relname::text AS name
  FROM pg_class AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'm')
   AND c.relpersistence <> 't'
   AND (c.relkind = 'r' OR c.relispopulated)
   AND n.nspname NOT IN ('pg_catalog', 'information_schema')
 ORDER BY n.nspname, c.relname;

-- name: tables_to_check
-- The smallest first, as far as $1 bytes go.
SELECT oid, schema, name, bytes
  FROM (SELECT c.oid::bigint AS oid, n.nspname::text AS schema, c.relname::text AS name,
               c.relpages::bigint * current_setting('block_size')::bigint AS bytes,
               sum(c.relpages::bigint * current_setting('block_size')::bigint)
                   OVER (ORDER BY c.relpages, c.oid) AS total
          FROM pg_class AS c
          JOIN pg_namespace AS n ON n.oid = c.relnamespace
         WHERE c.relkind IN ('r', 'm', 't') AND c.relpersistence <> 't') AS sized
 WHERE total <= $1::bigint
 ORDER BY total;
