"""Configuration of the server processes: flags, environment and TOML into one frozen model."""
