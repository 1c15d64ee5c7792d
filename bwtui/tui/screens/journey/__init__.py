"""The journey of a key on screen: in a recording, and of a relay that runs."""
