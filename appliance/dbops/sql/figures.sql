-- A database whose DROP was interrupted (-2) counts no more: the server leaves it out of its limits too.
SELECT
    current_setting('server_version') AS server_version,
    (SELECT max(age(datfrozenxid)) FROM pg_database WHERE datconnlimit <> -2) AS xid_age,
    (SELECT max(mxid_age(datminmxid)) FROM pg_database WHERE datconnlimit <> -2) AS mxid_age,
    pg_database_size(current_database()) AS bytes,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS sessions
