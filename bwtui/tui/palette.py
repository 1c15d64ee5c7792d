"""The command palette over all actions."""

from collections.abc import Callable
from functools import partial

from textual.command import DiscoveryHit, Hit, Hits, Provider

from bwtui.tui.action import Action
from bwtui.tui.actions import actions
from bwtui.tui.keys import key_text
from bwtui.tui.screens.audit.jobs import JobsApp


class ActionProvider(Provider):
    """Offers every action by its label and description."""

    async def discover(self) -> Hits:
        for action in self._actions():
            yield DiscoveryHit(_title(action), self._runner(action), help=action.help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for action in self._actions():
            text = f"{_title(action)} {action.help}"
            score = matcher.match(text)
            if score > 0:
                yield Hit(score, matcher.highlight(_title(action)), self._runner(action), help=action.help)

    def _actions(self) -> list[Action]:
        assert isinstance(self.app, JobsApp)
        return actions(self.app.model.kind, readonly=self.app.model.readonly)

    def _runner(self, action: Action) -> Callable[[], object]:
        namespace = self.screen if action.scope == "screen" else self.focused
        return partial(self.app.run_action, action.name, namespace)


def _title(action: Action) -> str:
    return f"{action.label}  ({key_text(action)})"
