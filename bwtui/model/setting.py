"""One setting as it is listed; apart from what else is looked at, since every command imports it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SettingEntry:
    """One setting: its value, secrets masked, and where it came from."""

    name: str
    value: str | bool | int | tuple[str, ...] | None
    origin: str

    @property
    def text(self) -> str:
        """The value as people write it, "-" where there is none."""
        value = self.value
        if value is None or value in ("", ()):
            return "-"
        if isinstance(value, bool):
            return str(value).lower()
        return ", ".join(value) if isinstance(value, tuple) else str(value)
