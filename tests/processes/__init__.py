"""Tests of real `quire serve` processes, one cluster after the other."""
