SELECT max(version) FROM appliance.migrations
