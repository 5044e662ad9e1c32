"""Commands that talk to a running service through its public REST API only."""
