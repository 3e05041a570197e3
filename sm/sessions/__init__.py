"""Client sessions: the session table, recorded replies, and retries that execute once."""
