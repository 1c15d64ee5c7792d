"""Fixture plugins for every test."""

pytest_plugins = ["tests.fix_sandbox"]
