"""Which server leads: what a client knows of its servers, and how it hears of the next leader."""
