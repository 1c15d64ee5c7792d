"""Widgets over the report of an audit."""
