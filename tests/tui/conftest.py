"""The UI's tests read times of day, so they all run in one time zone."""

import os
import time
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def utc() -> Iterator[None]:
    """Set the local time zone to UTC."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()
