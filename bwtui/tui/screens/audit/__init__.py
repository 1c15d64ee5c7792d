"""The screens of an audit, and what the apps do about the commands that audit and replay."""
