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

-- name: amcheck_schema
SELECT n.nspname::text
  FROM pg_extension AS e
  JOIN pg_namespace AS n ON n.oid = e.extnamespace
 WHERE e.extname = 'amcheck';

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

-- name: indexes_to_check
SELECT i.indexrelid::bigint AS oid, n.nspname::text AS schema, c.relname::text AS name
  FROM pg_index AS i
  JOIN pg_class AS c ON c.oid = i.indexrelid
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
  JOIN pg_am AS a ON a.oid = c.relam
 WHERE i.indrelid = ANY ($1::oid[])
   AND a.amname = 'btree' AND i.indisvalid AND i.indisready
 ORDER BY n.nspname, c.relname;
