"""The two lines at the top: source, state and position; a third one appears if something is wrong."""

from collections.abc import Iterator, Mapping
from datetime import datetime

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.geometry import Offset

from bwtui.model.status import Status
from bwtui.model.verdict import RelayVerdict as RelayVerdict
from bwtui.relay.process.control import RelayUnresponsive
from bwtui.tui.base import assessment, figures
from bwtui.tui.base.actions import tabs
from bwtui.tui.base.keys import key_for
from bwtui.tui.base.plain import Content
from bwtui.tui.base.theme import TONES
from bwtui.tui.sources.model import Link, Model, Playhead
from bwtui.tui.widgets.line import Line

#: Cells of the relay's name and state, and the same including its uptime.
_IDENTITY, _WIDE_IDENTITY = 27, 58
#: Maximum characters of the name that are kept in favour of whole tab labels.
_NAME = 6


class Header(Vertical):
    """Shows the relay's name and state, the tabs, and a sentence about the present situation."""

    def compose(self) -> ComposeResult:
        with Horizontal(id="top"):
            yield Line(id="identity")
            yield Line(id="tabs", links=True)
        yield Line(id="sentence")
        yield Line(id="trouble")

    _tabs: Mapping[str, Content] = {}

    def places(self) -> Iterator[tuple[str, Offset]]:
        """Yield the position of each tab, by its mode."""
        at = self.query_one("#tabs", Line).region.offset
        for mode, tab in self._tabs.items():
            yield mode, at
            at += Offset(tab.cell_length, 0)

    def show(self, model: Model, screen: str, crumbs: tuple[str, ...], stopping: bool) -> None:
        """Paint what changed."""
        width = self.app.size.width
        self._tabs = _tabs(model, screen, width)
        tabs = Content.assemble(*self._tabs.values())
        self.query_one("#identity", Line).put(_identity(model, width, width - tabs.cell_length))
        self.query_one("#tabs", Line).put(tabs, layout=True)
        sentence, rest = _wrapped(_sentence(model, crumbs, stopping), model, width)
        self.query_one("#sentence", Line).put(sentence)
        trouble = self.query_one("#trouble", Line)
        text = _trouble(model)
        if rest is not None:
            text = rest if text is None else rest + text
        trouble.display = text is not None
        if text is not None:
            trouble.put(text)


def _identity(model: Model, width: int, room: int) -> Content:
    verdict, state, name = _verdict(model), _state(model), model.name
    if width < 100:
        # The state must never be cut; the tabs take the space that they need.
        most = max(min(11, room - len(state) - 3), 4)
        name = name if len(name) <= most else name[: most - 1] + "…"
    parts: list[tuple[str, str] | str] = [(" bwtui ", "bold $primary")]
    if model.kind == "fleet":
        return Content.assemble(*parts, (" ALL RELAYS ", "bold reverse $primary"))
    parts.append((f"{name}  ", "bold"))
    if model.kind == "report":
        return Content.assemble(*parts, (" AUDIT REPORT ", "bold reverse $warning"))
    # Narrow terminals need the space for the tabs.
    parts = parts if width >= 100 else [(f" {name} ", "bold")]
    if model.recorded:
        return Content.assemble(*parts, (state, "bold reverse $warning"))
    parts += [(state, f"bold {TONES[verdict.tone]}")]
    status = model.live.status
    if width >= 120 and status is not None and status.started:
        parts.append((f"  up {figures.duration(status.time - status.started)}", "$quiet"))
        parts.append((f"  pid {status.pid}", "$quiet"))
    return Content.assemble(*parts)


def _state(model: Model) -> str:
    """Return the state shown next to the name."""
    verdict = _verdict(model)
    return " RECORDING " if model.recorded else f"{verdict.mark} {verdict.word}"


def _verdict(model: Model) -> assessment.Assessment:
    """Return the verdict on the relay: its own, unless it no longer answers."""
    status = model.live.status
    if status is None:
        if model.failure is not None:
            return assessment.Assessment("warn", "NOT RUNNING")
        return assessment.Assessment("muted", "CONNECTING")
    by_link: dict[Link, assessment.Assessment] = {"stale": assessment.Assessment("warn", "NO ANSWER")}
    if model.link == "gone" and status.state not in ("stopped", "failed"):
        is_silent = isinstance(model.failure, RelayUnresponsive)
        return assessment.Assessment("bad", "NO ANSWER" if is_silent else "GONE")
    return by_link.get(model.link, assessment.of_status(status))


def _tabs(model: Model, screen: str, width: int) -> dict[str, Content]:
    """Return the tabs, with short labels if whole ones do not fit."""
    full = _labelled(model, screen, short=False)
    if _length(full) <= width - (_WIDE_IDENTITY if width >= 120 else _IDENTITY):
        return full
    short = _labelled(model, screen, short=True)
    if _length(short) <= width - len(_state(model)) - min(len(model.name), _NAME) - 3:
        return short
    return _labelled(model, screen, short=True, all_short=True)


def _length(labelled: dict[str, Content]) -> int:
    return sum(tab.cell_length for tab in labelled.values())


def _labelled(model: Model, screen: str, *, short: bool, all_short: bool = False) -> dict[str, Content]:
    status = model.live.status
    labelled: dict[str, Content] = {}
    for name, action in tabs(model.kind).items():
        label = (action.short if all_short else "") or action.label
        text = f" {key_for(action.name)} {label} "
        if short and name != screen:
            text = f" {key_for(action.name)}{action.short or action.label}"
        standing = sum(map(assessment.stands, status.errors)) if status is not None else 0
        if name == "errors" and standing:
            shown = figures.count(standing)
            text += f"·{shown}" if short and name != screen else f"{shown} "
        if name == screen:
            # Not a link: Textual would paint it in the colour of links, which is unreadable here.
            labelled[name] = Content.styled(text, "bold $background on $primary")
        else:
            labelled[name] = Content.styled(text, f"$quiet @click=screen.show('{name}')")
    return labelled


def _sentence(model: Model, crumbs: tuple[str, ...], stopping: bool) -> Content:
    where = Content.styled(" " + " › ".join(crumbs) + "  ", "bold")
    if model.readonly:
        where += Content.styled(" READONLY ", "bold reverse $primary") + Content("  ")
    if model.background:
        where += Content.styled(f"● {model.background}", "bold $primary") + Content("  ")
    return where + _news(model, stopping)


def _wrapped(sentence: Content, model: Model, width: int) -> tuple[Content, Content | None]:
    """Split a sentence about trouble that is too long for its line; its rest precedes all other text below.

    Other sentences are cut: while all is well, nothing below should move.
    """
    if sentence.cell_length <= width or not _is_about_trouble(model):
        return sentence, None
    first, *more = sentence.wrap(width)
    return first, Content(" ") + Content(" ").join(more).truncate(width - 2, ellipsis=True)


def _is_about_trouble(model: Model) -> bool:
    if model.recorded or model.kind == "report" or model.paused is not None:
        return False
    status = model.live.status
    return status is None or model.link == "gone" or assessment.tone_of(status.verdict) in ("warn", "bad")


def _news(model: Model, stopping: bool) -> Content:
    status = model.live.status
    head = model.snapshot.playhead
    if model.kind in ("report", "fleet"):
        return Content.styled(model.remark, "$quiet")
    if head is not None and status is not None:
        return _as_of(head, status)
    if model.link == "gone" and status is not None:
        # The age comes first, where it is never cut.
        old = Content.styled(f"figures are {figures.duration(model.age)} old  ", "bold $warning")
        return old + _end(model, status)
    if stopping:
        return Content.styled("▲ stopping: the relay completes messages in flight", "bold $warning")
    if model.paused is not None:
        since = figures.duration(model.clock() - model.paused_at)
        more = max(model.live.rows - model.paused.rows, 0)
        rows = f"the relay continues: +{figures.count(more)} rows"
        text = f" PAUSED VIEW {since} · {rows} · {key_for('pause')} resumes "
        return Content.styled(text, "bold reverse $warning")
    if model.link == "stale":
        age = figures.duration(model.age)
        return Content.styled(f"▲ figures are {age} old: no answer from the relay", "bold $warning")
    if status is None:
        return Content.styled(str(model.failure or "querying the relay's status"), "$quiet")
    verdict = status.verdict
    tone = assessment.tone_of(verdict)
    if tone == "muted":
        return Content.styled(verdict.sentence or status.detail, "$quiet")
    words = _parts(verdict)[0]
    return Content.styled(f"{assessment.MARKS[tone]} {words}", f"bold {TONES[tone]}")


def _parts(verdict: RelayVerdict) -> tuple[str, str]:
    """Return the cause of a stall or a gap, which must always fit, and the rest of the sentence."""
    if verdict.condition not in ("stalled", "not_proven"):
        return verdict.sentence, ""
    cause, _, rest = verdict.sentence.partition("; ")
    return cause, rest


def _end(model: Model, status: Status) -> Content:
    """Return how the relay ended, or that it does not answer."""
    if isinstance(model.failure, RelayUnresponsive):
        return Content.styled(f"✗ {model.failure.message}", "bold $error")
    if status.state == "stopped":
        return Content.styled(f"■ {status.verdict.sentence or 'stopped cleanly'}", "bold $warning")
    if status.state == "failed":
        why = status.verdict.sentence or status.detail
        code = f" · exit code {status.exit_code}" if status.exit_code else ""
        return Content.styled(f"✗ {why}{code}", "bold $error")
    return Content.styled("✗ the relay ended without reporting a reason · looking for it", "bold $error")


def _as_of(head: Playhead, status: Status) -> Content:
    """Return the moment of the figures, and what the relay was doing then."""
    when = datetime.fromtimestamp(head.time / 1_000_000).strftime("%Y-%m-%d %H:%M:%S")
    state = assessment.of_status(status).word.lower()
    words = status.verdict.sentence or status.detail
    doing = f" · relay was {state}" + (f": {words}" if words else "")
    tone = TONES["bad"] if status.verdict.condition == "not_proven" else "$quiet"
    return Content.assemble((f"as of {when}", "bold $primary"), (doing, tone))


def _trouble(model: Model) -> Content | None:
    """Return what the user should do, or None."""
    status = model.live.status
    if model.recorded and model.failure is not None:
        return Content.styled(f" ✗ {model.failure}", "$error")
    if model.recorded:
        return Content.styled(f" ▲ {model.remark}", "$warning") if model.remark else None
    if status is None:
        advice = model.failure.hint if model.failure else None
        return Content.styled(f" → {advice}", "$warning") if advice else None
    if model.link == "gone" and isinstance(model.failure, RelayUnresponsive):
        return Content.styled(f" → {model.failure.hint}", "$warning")
    aside = f" ▲ {status.aside}" if status.aside else ""
    if not status.verdict.is_trouble:
        return Content.styled(aside, "$warning") if aside else None
    rest, hint = _parts(status.verdict)[1], status.verdict.hint
    parts = [f" {rest}" if rest else "", f" → {hint}" if hint else ""]
    if status.verdict.condition == "not_proven":
        # The rest, with how fast rows pass, may be cut, but not the hint.
        parts = [parts[1], f"  ·{parts[0]}" if rest else ""]
    parts.append(aside)
    return Content.styled("".join(parts), "$warning") if any(parts) else None
