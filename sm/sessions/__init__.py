"""Client sessions: the session table, recorded replies, and retries, which execute once."""
