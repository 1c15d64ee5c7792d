"""The base class of the export formats' writers."""

from bwtui.recording.change import Change


class Writer:
    """Writes changes into a file that the caller opened; a writer without a buffer needs only `write`."""

    def write(self, change: Change) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """Write what is buffered, and the file's ending."""

    def abandon(self) -> None:
        """Release the file, which is about to be discarded."""

    @property
    def notes(self) -> list[str]:
        """Notes on what the file can't reproduce exactly, one line each."""
        return []
