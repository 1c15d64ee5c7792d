"""The screens of a key's journey: one for a recording, one for a running relay."""
