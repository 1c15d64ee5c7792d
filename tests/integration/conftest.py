"""Fixtures for most tests of this folder."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.attempts import Attempts
from tests.database import Session


@pytest.fixture
def attempts(services: ServiceAddresses, tmp_path: Path) -> Attempts:
    """Runs of the relay, with a separate state folder."""
    return Attempts(services, tmp_path)


@pytest.fixture
def source(database: str) -> Iterator[Session]:
    """A session on an empty database."""
    with closing(Session(database)) as opened:
        yield opened
