"""The settings of an embedded cluster, as the two files its server reads. Text only; writes nothing.

PostgreSQL 14 to 18 take all of them; docs/database.md explains them to operators.
"""

from __future__ import annotations

SUPERUSER = "postgres"
PORT = 5432
"""In the name of the socket alone; nothing listens on a network."""

SETTINGS_FILE = "appliance.conf"
INCLUDE_LINE = f"\ninclude '{SETTINGS_FILE}'\n"
"""The last line of postgresql.conf; what ALTER SYSTEM sets (postgresql.auto.conf) still comes after."""

SETTINGS = """\
# Written at every start of the appliance; changes here are lost. Use ALTER SYSTEM.

# Reached through a socket in the data folder alone. The folder's mode (0700) is the access rule:
# its owner and root may connect (pg_hba.conf says trust), nobody else gets as far as the socket.
listen_addresses = ''
unix_socket_directories = '.'
unix_socket_permissions = 0700
cluster_name = 'appliance'

# A few pooled connections of the server, some for the operator and for maintenance.
max_connections = 40
superuser_reserved_connections = 3

# Beside an engine that needs the memory more. Statements are key look-ups in one partition, so there
# is nothing to run in parallel, and nothing then needs a /dev/shm, small in many containers.
shared_buffers = 128MB
work_mem = 8MB
maintenance_work_mem = 128MB
max_parallel_workers_per_gather = 0
jit = off

# A committed turn survives a power cut.
fsync = on
full_page_writes = on
synchronous_commit = on
wal_level = replica
# When one of its processes dies, all end, and whoever started the server starts it again. Left to recover
# in place, PostgreSQL 18.6 waits for ever once its startup process dies as well.
restart_after_crash = off
max_wal_size = 1GB
checkpoint_timeout = 15min

# Archiving is on so that `appliance db backup` can begin it without a restart; until then every segment
# counts as archived. A slot that nobody reads any more fills no disk.
archive_mode = on
archive_command = 'true'
max_slot_wal_keep_size = 4GB

# Rows are appended and rarely changed: freeze them early, in small steps, so that no vacuum is ever
# large. Append-only tables are vacuumed by their inserts, and what a vacuum passes it freezes at once.
autovacuum = on
autovacuum_naptime = 30s
autovacuum_vacuum_insert_scale_factor = 0.05
autovacuum_analyze_scale_factor = 0.05
vacuum_freeze_min_age = 0
vacuum_freeze_table_age = 100000000
autovacuum_freeze_max_age = 200000000
autovacuum_multixact_freeze_max_age = 400000000

# No session holds the horizon back by being forgotten (the appliance's own sessions are stricter), and
# no prepared transaction can be left behind at all.
idle_in_transaction_session_timeout = 60s
client_connection_check_interval = 5s
max_prepared_transactions = 0

# One file a weekday, a week at most. Never a statement, a parameter or a row: `panic` keeps the text of
# failed statements out, `terse` the values of failed rows. No warnings: when 40 million transaction IDs
# are left, each that is used gives one, 18 GB of them before the stop (clients see them still).
logging_collector = on
log_destination = 'stderr'
log_directory = 'log'
log_filename = 'postgresql-%a.log'
log_file_mode = 0600
log_rotation_age = 1d
log_rotation_size = 0
log_truncate_on_rotation = on
log_line_prefix = '%m [%p] %q%d %a '
log_min_messages = error
log_min_error_statement = panic
log_error_verbosity = terse
log_statement = none
log_min_duration_statement = -1
log_parameter_max_length = 0
log_parameter_max_length_on_error = 0
log_connections = off
log_disconnections = off
log_lock_waits = off
log_checkpoints = off
log_temp_files = -1
log_timezone = 'UTC'

timezone = 'UTC'
"""

HBA_FILE = "pg_hba.conf"
HBA = """\
# Who reaches the socket is the folder's owner or root (see appliance.conf); nobody comes by network.
# TYPE  DATABASE     USER  METHOD
local   all          all   trust
local   replication  all   trust
"""
