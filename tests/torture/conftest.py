"""Fixtures: relays that are closed at the end of their test."""

from tests.faults.conftest import new_relay

__all__ = ["new_relay"]
