"""Operations that change a log on disk: append, rotate, truncate, expire, reset, rewrite, recover."""
