"""What writes changes in one format."""

from bwtui.recording.change import Change


class Writer:
    """Writes changes into a file that its caller opened; one that holds nothing back needs only `write`."""

    def write(self, change: Change) -> None:
        """Write one change."""
        raise NotImplementedError

    def finish(self) -> None:
        """Write what is left, and the end."""

    def abandon(self) -> None:
        """Let go of the file, which is about to be thrown away."""

    @property
    def notes(self) -> list[str]:
        """What the file can't say as it was, a line each."""
        return []
