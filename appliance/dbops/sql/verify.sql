-- name: tables
-- Every table that holds rows itself; a partitioned table's are in its partitions. $1: temporary tables of
-- other sessions cannot be read.
SELECT c.oid::bigint AS oid,
       replace(n.nspname::text, '\', '\\')::bytea AS schema,
       replace(c.relname::text, '\', '\\')::bytea AS name
  FROM pg_class AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'm')
   AND c.relpersistence <> 't'
   AND (c.relkind = 'r' OR c.relispopulated)
   AND n.nspname NOT IN ('pg_catalog', 'information_schema')
 ORDER BY n.nspname, c.relname;
