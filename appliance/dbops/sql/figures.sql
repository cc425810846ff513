SELECT
    current_setting('server_version') AS server_version,
    (SELECT max(age(datfrozenxid)) FROM pg_database) AS xid_age,
    (SELECT max(mxid_age(datminmxid)) FROM pg_database) AS mxid_age,
    pg_database_size(current_database()) AS bytes,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS sessions,
    to_regclass('appliance.migrations') IS NOT NULL AS has_schema
