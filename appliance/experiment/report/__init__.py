"""An experiment's report: a page that needs nothing else, and JSON."""
