"""Fixtures: relays that end with their test."""

from tests.faults.conftest import new_relay

__all__ = ["new_relay"]
