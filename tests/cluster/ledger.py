"""A machine in a package of its own, whose code a test replaces; the fixture `deploy` puts it in place."""

from collections.abc import Callable

PACKAGE = "ledger_of_this_test"
SPEC = f"{PACKAGE}.machine:Ledger"
MACHINE = f"""
from {PACKAGE}.rules import posted, read, written

class Ledger:
    name = "ledger"
    version = 1
    quick = True
    def __init__(self, initial): self.balance = 0
    def check(self, command): ...
    def apply(self, command, context):
        self.balance = posted(self.balance, command)
        return self.balance
    def query(self, request): return self.balance
    def snapshot(self): yield written(self.balance).encode()
    def restore(self, chunks): self.balance = read(b"".join(chunks).decode())
"""
RULES = """
def posted(balance, amount):
    if isinstance(amount, list):
        raise KeyError(amount[0])
    return balance + amount
def written(balance): return f"{balance}"
def read(text): return int(text)
"""
LATER = """
def posted(balance, amount):
    return balance * 2 if amount == ["double"] else balance + amount
def written(balance): return f"{balance},later"
def read(text): return int(text.removesuffix(",later"))
"""
"""Of a class with one more command and one more field, which reads snapshots of both shapes."""

Deploy = Callable[[str], str]
