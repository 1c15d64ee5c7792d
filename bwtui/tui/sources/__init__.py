"""The data of the screens, without widgets: a live relay, a recording, and the journey of a key."""
