"""Masked output never contains secrets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from bwtui.masking import is_secret, mask_connection, mask_property, without_passwords


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("host=db password=secret user=me", "host=db password=*** user=me"),
        ("password = 'a b\\' c' host=db", "password = *** host=db"),
        ("host=db PASSWORD=secret", "host=db PASSWORD=***"),
        ("password=a\\ b host=db", "password=*** host=db"),
        ("sslpassword=x sslkey=y", "sslpassword=*** sslkey=y"),
        ("postgresql://me:secret@db:5432/shop", "postgresql://me:***@db:5432/shop"),
        ("postgresql://me:se@cret@db/shop", "postgresql://me:***@db/shop"),
        ("postgresql://me:se/cret@db/shop", "postgresql://me:***@db/shop"),
        ("postgresql://db/shop?user=me&password=secret&x=1", "postgresql://db/shop?user=me&password=***&x=1"),
        ("postgresql://me:se cret@db/shop", "postgresql://me:***@db/shop"),
        ("postgresql://db:5432 is away, ask me@home", "postgresql://db:5432 is away, ask me@home"),
        ("postgresql://me@db/shop", "postgresql://me@db/shop"),
        ("http://u:p@h:8081,http://u:q@h2:8081", "http://u:***@h:8081,http://u:***@h2:8081"),
        ("http://localhost:8081/a", "http://localhost:8081/a"),
        ("http://h:8081,http://u:q@h2:8081", "http://h:8081,http://u:***@h2:8081"),
        ("dbname=shop", "dbname=shop"),
        ("", ""),
    ],
)
def test_connection_strings(text: str, masked: str) -> None:
    assert mask_connection(text) == masked


@pytest.mark.parametrize(
    ("key", "value", "masked"),
    [
        ("sasl.password", "x", "***"),
        ("ssl.key.password", "x", "***"),
        ("ssl.keystore.password", "x", "***"),
        ("ssl.key.pem", "x", "***"),
        ("sasl.oauthbearer.client.secret", "x", "***"),
        ("sasl.oauthbearer.config", "x", "***"),
        ("sasl.jaas.config", "x", "***"),
        ("bearer.auth.token", "x", "***"),
        ("basic.auth.user.info", "me:x", "me:***"),
        ("basic.auth.user.info", "x", "***"),
        ("ssl.key.location", "/key.pem", "/key.pem"),
        ("ssl.certificate.pem", "x", "x"),
        ("sasl.oauthbearer.token.endpoint.url", "https://id/x", "https://id/x"),
        ("sasl.oauthbearer.token.endpoint.url", "https://u:p@id/x", "https://u:***@id/x"),
        ("sasl.username", "me", "me"),
        ("linger.ms", "5", "5"),
    ],
)
def test_properties(key: str, value: str, masked: str) -> None:
    assert mask_property(key, value) == masked
    assert is_secret(key) == ("***" in masked and "://" not in masked)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_no_quoted_password_is_left(secret: str) -> None:
    quoted = secret.replace("\\", "\\\\").replace("'", "\\'")
    assert mask_connection(f"host=db password='{quoted}' user=me") == "host=db password=*** user=me"


_SECRETS = ("password", "sslpassword")
_PARAMETERS = st.permutations((*_SECRETS, "user", "sslmode", "application_name")).flatmap(
    lambda names: st.integers(1, len(names)).map(lambda number: names[:number])
)


@given(_PARAMETERS, st.booleans())
def test_only_the_secrets_are_left_out_of_a_uri(names: list[str], is_uri: bool) -> None:
    """Whatever their order: two secrets may follow each other, at the start, in the middle or at the end."""
    parameters = {name: f"v{number}x" for number, name in enumerate(names)}
    joined = ("&" if is_uri else " ").join(f"{name}={value}" for name, value in parameters.items())
    shown = f"postgresql://db/shop?{joined}" if is_uri else f"host=db dbname=shop {joined}"
    rest = {name: value for name, value in parameters.items() if name not in _SECRETS}
    assert conninfo_to_dict(without_passwords(shown)) == {"host": "db", "dbname": "shop", **rest}
    masked = {name: "***" for name in parameters if name in _SECRETS}
    assert conninfo_to_dict(mask_connection(shown)) == {"host": "db", "dbname": "shop", **rest, **masked}


@given(st.text(st.characters(codec="ascii", min_codepoint=33, exclude_characters="*"), min_size=1))
def test_no_password_in_a_uri_is_left(secret: str) -> None:
    masked = mask_connection(f"postgresql://me:{secret}<>@db/shop")
    assert f"{secret}<>" not in masked


@pytest.mark.parametrize(
    "piece", ["x", "x.", "a:", "://", "postgres://a:", "postgres://a: ", "password=", "x "]
)
def test_a_long_text_is_masked_in_no_time(piece: str) -> None:
    # With quadratic cost this would take minutes.
    text = piece * (200_000 // len(piece))
    assert mask_connection(text).startswith(piece)
