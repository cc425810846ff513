"""Running and repairing a PostgreSQL; knows no chat."""
