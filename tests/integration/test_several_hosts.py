"""Several hosts in one connection string: the ones that are tried, as libpq documents it."""

import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from bwtui.errors import AuthenticationFailed
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.source.connection import connect
from bwtui.source.raw_session import connect_raw

pytestmark = pytest.mark.services


@pytest.mark.parametrize("opened_by", [connect, connect_raw])
@pytest.mark.parametrize(
    ("refused", "words"),
    [
        ("dbname=no_such_database", 'database "no_such_database" does not exist'),
        ("user=no_such_role", 'password authentication failed for user "no_such_role"'),
    ],
)
def test_behind_a_host_that_refuses_the_login_no_other_one_is_tried(
    services: ServiceAddresses, opened_by: Callable[[str], Any], refused: str, words: str
) -> None:
    """It is the user's error, which another host can only hide: https://www.postgresql.org/docs/current/libpq-connect.html"""
    url = urlsplit(services.postgres)
    with socket.create_server((url.hostname or "", 0)) as other:
        other.setblocking(False)
        ports = f"{url.port},{other.getsockname()[1]}"
        dsn = f"host={url.hostname},{url.hostname} port={ports} connect_timeout=3"
        whole = {"user": url.username, "password": url.password, "dbname": url.path[1:]}
        whole |= dict([refused.split("=")])
        with pytest.raises(AuthenticationFailed) as failure:
            opened_by(f"{dsn} " + " ".join(f"{key}={value}" for key, value in whole.items() if value))
        assert words in failure.value.message
        with pytest.raises(BlockingIOError):
            other.accept()
