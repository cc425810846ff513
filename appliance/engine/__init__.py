"""The engine process: tokens in, tokens out; it never sees text, HTTP or SQL."""
