"""What brings a cluster back: ordered steps out of a snapshot and a policy. Pure."""
