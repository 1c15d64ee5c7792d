"""The dialog of a background command: its progress and its end."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from bwtui.tui import figures
from bwtui.tui.audit.command_process import CommandPhase, CommandProgress
from bwtui.tui.audit.session import BackgroundJob
from bwtui.tui.plain import Content

_BAR = 40
_PER_SECOND = 5
#: Maximum phases shown before the present one.
_BEFORE = 6


class JobScreen(ModalScreen[None]):
    """Shows a command; Esc leaves it running in the background, c cancels it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Background", key_display="Esc"),
        Binding("c", "cancel", "Cancel"),
        Binding("right", "app.focus_next", show=False),
        Binding("left", "app.focus_previous", show=False),
    ]

    def __init__(self, job: BackgroundJob) -> None:
        super().__init__()
        self.job = job

    def compose(self) -> ComposeResult:
        with Vertical(id="job", classes="dialog") as box:
            box.border_title = Content(self.job.title)
            yield Static("", id="phases", markup=False)
            with Horizontal(classes="buttons"):
                yield Button("In the background (Esc)", id="background", variant="primary", compact=True)
                yield Button("Cancel it (c)", id="cancel", compact=True)

    def on_mount(self) -> None:
        self.set_interval(1 / _PER_SECOND, self.look)
        self.query_one("#background").focus()
        self.look()

    def look(self) -> None:
        """Show the progress, or how the command ended."""
        job = self.job
        content = job_content(job)
        self.query_one("#phases", Static).update(content)
        self.query_one("#cancel").display = job.ended is None and not job.child.cancelled
        if job.ended is not None:
            self.query_one("#background", Button).label = "Close (Esc)"

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "cancel":
            self.action_cancel()
        else:
            self.dismiss()

    def action_cancel(self) -> None:
        """Interrupt the command; its result is shown when it has ended."""
        if self.job.ended is None:
            self.job.child.cancel()
            self.look()


def job_content(job: BackgroundJob) -> Content:
    """Return the phases of a command with the progress of the present one, or its error."""
    progress = job.child.progress
    lines = [_past(one, after) for one, after in _finished(progress)]
    if job.ended is not None:
        return Content("\n").join([*lines, *_ending(job)])
    if job.child.cancelled:
        lines.append(Content.styled("▲ ending: what is under way comes to its end first", "bold $warning"))
    else:
        lines += _present(progress)
    return Content("\n").join(lines)


def _finished(progress: CommandProgress) -> list[tuple[CommandPhase, float]]:
    phases = progress.phases
    times = [phase.began for phase in phases[1:]]
    return [(p, end - p.began) for p, end in zip(phases, times, strict=False)][-_BEFORE:]


def _past(phase: CommandPhase, seconds: float) -> Content:
    rows = f"  {phase.total:,} rows" if phase.total else ""
    return Content.assemble(
        ("✓ ", "$success"), phase.name.partition(":")[0], (f"{rows}  {figures.duration(seconds)}", "$quiet")
    )


def _present(progress: CommandProgress) -> list[Content]:
    now, elapsed = progress.now, figures.duration(progress.clock() - progress.began)
    if now is None:
        return [Content.styled("starting…", "bold"), Content.styled(f"{elapsed} so far", "$quiet")]
    lines = [Content.assemble(("▸ ", "$primary"), (now.name.partition(":")[0], "bold"))]
    if now.total:
        share = progress.share or 0.0
        lines.append(
            Content.assemble(
                ("  " + figures.gauge(share, _BAR), "$primary"), (f" {figures.percent(share)}", "bold")
            )
        )
        rate, left = progress.rate, progress.left
        parts = [f"  {now.done:,} of {now.total:,}"]
        parts += [f"{figures.rate(rate)} rows/s"] if rate else []
        parts += [f"{figures.duration(left)} left"] if left is not None else []
        lines.append(Content(" · ".join(parts)))
    else:
        lines.append(Content.styled(f"  {figures.duration(progress.clock() - now.began)}", "$quiet"))
    return [*lines, Content.styled(f"{elapsed} so far", "$quiet")]


def _ending(job: BackgroundJob) -> list[Content]:
    ended = job.ended
    assert ended is not None
    if job.child.cancelled:
        # A relay continues with what it was asked to send; only the command knows whether it had asked.
        says = ended.error if ended.hint else "cancelled: nothing of it runs any more"
        lines = [Content.styled(f"■ {says}", "bold $warning")]
        return [*lines, Content.styled(f"→ {ended.hint}", "$warning")] if ended.hint else lines
    lines = [Content.styled(f"✗ {ended.error or f'exit code {ended.code}'}", "bold $error")]
    return [*lines, Content.styled(f"→ {ended.hint}", "$warning")] if ended.hint else lines
