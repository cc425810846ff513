"""The HTTP door: routes, limits, server-sent events, the page."""
