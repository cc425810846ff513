"""The one appliance command."""
