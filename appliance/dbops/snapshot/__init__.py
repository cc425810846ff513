"""What is known of a cluster at one moment, and reading it."""
