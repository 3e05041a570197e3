"""Who may do what: roles, tokens, certificates and the contexts made of them. Knows no HTTP and no node."""
