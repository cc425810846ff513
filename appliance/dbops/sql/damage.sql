-- name: log_file
-- The log that the server's collector writes now; NULL: it writes none, or not to a file.
SELECT f.name,
       (pg_stat_file(f.name)).size AS bytes,
       current_setting('log_line_prefix') AS line_prefix
  FROM pg_current_logfile() AS f (name);

-- name: log_tail
SELECT pg_read_binary_file($1::text, $2::bigint, $3::bigint);

-- name: relation_of_file
-- A table or index by the number of its file; of an index, its table.
SELECT t.oid::bigint AS oid,
       n.nspname::text AS schema,
       t.relname::text AS relation,
       CASE WHEN x.indexrelid IS NOT NULL THEN c.relname::text END AS index,
       x.indexrelid::bigint AS index_oid
  FROM pg_class AS c
  LEFT JOIN pg_index AS x ON x.indexrelid = c.oid
  JOIN pg_class AS t ON t.oid = coalesce(x.indrelid, c.oid)
  JOIN pg_namespace AS n ON n.oid = t.relnamespace
 WHERE c.oid = pg_filenode_relation($1::oid, $2::oid);

-- name: relation_of_index
-- All that have this name: a log tells no schema.
SELECT t.oid::bigint AS oid,
       n.nspname::text AS schema,
       t.relname::text AS relation,
       c.relname::text AS index,
       c.oid::bigint AS index_oid
  FROM pg_class AS c
  JOIN pg_index AS x ON x.indexrelid = c.oid
  JOIN pg_class AS t ON t.oid = x.indrelid
  JOIN pg_namespace AS n ON n.oid = t.relnamespace
 WHERE c.relname = $1;
