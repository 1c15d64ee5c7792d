"""Widgets that show an audit report."""
