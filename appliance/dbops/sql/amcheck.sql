-- name: schema
SELECT n.nspname::text
  FROM pg_extension AS e
  JOIN pg_namespace AS n ON n.oid = e.extnamespace
 WHERE e.extname = 'amcheck';

-- name: b_trees
SELECT i.indexrelid::bigint AS oid, n.nspname::text AS schema, c.relname::text AS name
  FROM pg_index AS i
  JOIN pg_class AS c ON c.oid = i.indexrelid
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
  JOIN pg_am AS a ON a.oid = c.relam
 WHERE i.indrelid = ANY ($1::oid[])
   AND a.amname = 'btree' AND i.indisvalid AND i.indisready
 ORDER BY n.nspname, c.relname;
