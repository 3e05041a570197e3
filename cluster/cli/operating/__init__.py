"""What an operator asks of a cluster: status and members, maintenance, recovery."""
