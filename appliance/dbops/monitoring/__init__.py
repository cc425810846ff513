"""A cluster's state for people, monitoring and alerts."""
