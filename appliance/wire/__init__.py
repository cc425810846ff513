"""The frames between server and engine, and the client that speaks them."""
