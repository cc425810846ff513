-- name: log_file
-- The log that the server's collector writes now; NULL: it writes none, or not to a file.
SELECT f.name, (pg_stat_file(f.name)).size AS bytes
  FROM pg_current_logfile() AS f (name);

-- name: log_tail
SELECT pg_read_binary_file($1::text, $2::bigint, $3::bigint);

-- name: relation_of_file
-- A table or index by the number of its file; of an index, its table.
SELECT t.oid::bigint AS oid,
       n.nspname::text AS schema,
       t.relname::text AS relation,
       CASE WHEN x.indexrelid IS NOT NULL THEN c.relname::text END AS index
  FROM pg_class AS c
  LEFT JOIN pg_index AS x ON x.indexrelid = c.oid
  JOIN pg_class AS t ON t.oid = coalesce(x.indrelid, c.oid)
  JOIN pg_namespace AS n ON n.oid = t.relnamespace
 WHERE c.oid = pg_filenode_relation($1::oid, $2::oid);

-- name: relation_of_index
SELECT t.oid::bigint AS oid,
       n.nspname::text AS schema,
       t.relname::text AS relation,
       c.relname::text AS index
  FROM pg_class AS c
  JOIN pg_index AS x ON x.indexrelid = c.oid
  JOIN pg_class AS t ON t.oid = x.indrelid
  JOIN pg_namespace AS n ON n.oid = t.relnamespace
 WHERE c.relname = $1;

-- name: amcheck_path
-- Makes the functions of the extension amcheck known by their names; no row: it is not installed here.
SELECT set_config('search_path', 'pg_catalog, ' || quote_ident(n.nspname), false)
  FROM pg_extension AS e
  JOIN pg_namespace AS n ON n.oid = e.extnamespace
 WHERE e.extname = 'amcheck';

-- name: check_heap
SELECT blkno, msg
  FROM verify_heapam($1::oid::regclass, on_error_stop => true)
 LIMIT 1;

-- name: btree_indexes
SELECT c.oid::bigint AS oid, c.relname::text AS name
  FROM pg_index AS x
  JOIN pg_class AS c ON c.oid = x.indexrelid
  JOIN pg_am AS a ON a.oid = c.relam
 WHERE x.indrelid = $1::oid AND x.indisvalid AND x.indisready AND a.amname = 'btree'
 ORDER BY c.oid;

-- name: check_index
SELECT bt_index_check($1::oid::regclass);
