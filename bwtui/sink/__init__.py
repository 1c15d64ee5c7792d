"""Sinks deliver messages: a sink accepts them, and later reports which are durable."""
