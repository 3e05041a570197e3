"""Tests of real `quire serve` processes."""
