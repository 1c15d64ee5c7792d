"""Texts about the schema registry for the screens, without widgets."""
