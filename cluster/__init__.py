"""The cluster: node, configuration, HTTP API, client, command line and demo around the log and its replication."""
