"""The line with the state of a running relay's recording."""

from pathlib import Path

from bwtui.model.status import RecordingStatus
from bwtui.tui import figures
from bwtui.tui.plain import Content
from bwtui.tui.widgets.line import Line

#: Remaining seconds of disk space at the present rate below which a warning is shown.
_LITTLE_TIME = 3600.0
_LITTLE_ROOM = 1 << 30


class RecordingLine(Line):
    """Shows rate, size and free disk space; hidden if nothing is recorded."""

    def show(self, recording: RecordingStatus | None) -> None:
        """Paint what changed."""
        self.display = recording is not None
        if self.parent is not None:
            self.parent.set_class(recording is not None, "-recording")
        if recording is not None:
            self.put(recording_content(recording, self.content_size.width))


def recording_content(recording: RecordingStatus, width: int) -> Content:
    """Return the line for ``width`` cells, without the least important parts if space is short."""
    if recording.state == "recording":
        mark = Content.styled("● REC", "bold $error")
    else:
        word = "✗ NOT RECORDED ANY MORE" if recording.state == "stopped" else "✗ RECORDING FAILED"
        mark = Content.styled(word, "bold $error")
    rate = f"{figures.size(round(recording.bytes_per_second))}/s"
    parts = [mark]
    if recording.state == "recording":
        parts.append(Content(rate))
    parts.append(Content.assemble((f"{figures.size(recording.bytes)}", ""), (" written", "$quiet")))
    parts.append(_room(recording))
    parts.append(Content.styled(_files(recording), "$quiet"))
    parts.append(Content.styled(Path(recording.path).name, "$quiet"))
    while len(parts) > 2 and sum(part.cell_length for part in parts) + 2 * (len(parts) - 1) > width:
        parts.pop()
    return Content("  ").join(parts)


def _room(recording: RecordingStatus) -> Content:
    left, free = recording.seconds_left, recording.free_bytes
    time = "" if left is None else f" ≈ {figures.duration(left)}"
    is_short = (free is not None and free < _LITTLE_ROOM) or (left is not None and left < _LITTLE_TIME)
    text = f"{'▲ ' if is_short else ''}free {figures.NONE if free is None else figures.size(free)}{time}"
    return Content.styled(text, "$warning" if is_short else "")


def _files(recording: RecordingStatus) -> str:
    return f"{recording.segments} file{'s' if recording.segments != 1 else ''}"
