"""An embedded PostgreSQL: its programs, its folder, its server; and preparing one that is not ours."""
