"""Character cards: the community's formats V1, V2 and V3, read, written and made into characters."""
