"""Measurements. Each module prints what it measured, with the machine and the date."""
