"""The properties in [registry]: those of Confluent's client, with numbers converted."""

from typing import Any

from bwtui.errors import UsageError
from bwtui.options import nearest
from bwtui.setting_origins import OfProperty, usual_place
from bwtui.settings import Pairs

_OPTION = "registry-config"
_WHOLE = ("cache.capacity", "max.retries", "retries.wait.ms", "retries.max.wait.ms")
_NUMBERS = (*_WHOLE, "timeout", "cache.latest.ttl.sec")
_TEXTS = (
    *("ssl.ca.location", "ssl.key.location", "ssl.key.password", "ssl.certificate.location"),
    *("basic.auth.user.info", "proxy", "bearer.auth.credentials.source", "bearer.auth.token"),
    *("bearer.auth.logical.cluster", "bearer.auth.identity.pool.id", "bearer.auth.client.id"),
    *("bearer.auth.client.secret", "bearer.auth.scope", "bearer.auth.issuer.endpoint.url"),
)
_AS_BROKER = "-r/--schema-registry sets it"


def registry_config(url: str, pairs: Pairs, place: OfProperty = usual_place) -> dict[str, Any]:
    """Return the configuration of a client for ``url``. Raises UsageError with the property's place."""
    config: dict[str, Any] = {"url": url, "timeout": 10, "max.retries": 0}
    for key, text in pairs:
        where = place(_OPTION, key)
        if key == "url":
            raise UsageError(f"{where}: url is not allowed: {_AS_BROKER}", "omit this property")
        if key not in _NUMBERS and key not in _TEXTS:
            close = nearest(key, (*_NUMBERS, *_TEXTS))
            hint = (
                f"did you mean {close}?" if close else f"valid properties: {', '.join((*_TEXTS, *_NUMBERS))}"
            )
            raise UsageError(f"{where}: the registry's client has no property {key}", hint)
        config[key] = _number(where, key, text) if key in _NUMBERS else text
    return config


def _number(where: str, key: str, text: str) -> float:
    try:
        number = int(text) if key in _WHOLE else float(text)
    except ValueError:
        number = -1
    # NaN and infinity fail this comparison too.
    if not 0 <= number < 1e9:
        raise UsageError(f"{where}: {key}={text} is not a valid number", f"use one from 0, such as {key} = 5")
    return number
