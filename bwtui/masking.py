"""Remove secrets from text for people: connection strings, URLs, and Kafka or registry properties.

Masking too much is harmless, masking too little is not: anything that looks like a secret is hidden.
"""

import re

MASK = "***"

_SECRET_KEYWORDS = r"(?:password|passwd|sslpassword|oauth_client_secret|scram_client_key|scram_server_key)"
# Keyword form of libpq: password = 'quoted \' value' or password=plain\ value.
_KEYWORD = re.compile(
    rf"(?i)\b({_SECRET_KEYWORDS}\s*=\s*)('[^'\\]*+(?:\\.[^'\\]*+)*+'?|(?:[^\s\\&]++|\\.)++)"
)
# user:password@ inside a URI. The second form matches an unescaped / or ? inside the password; it excludes a
# port that is followed by another URI, as in a list of registries. The last character of the scheme is
# enough: a complete one would be searched from every letter of a long word to its end.
_USERINFO = re.compile(r"([a-zA-Z0-9+.-]://[^:/?#@\s]*:)([^/?#\s,]*)(@)")
_USERINFO_ODD = re.compile(r"([a-zA-Z0-9+.-]://[^:/?#@\s]*:)(?!\d{1,5},[a-z]+://)(\S{0,500})(@)")
# libpq accepts blanks, too. Other URIs may have no password, and an @ later in the text.
_USERINFO_BLANK = re.compile(r"(postgres(?:ql)?://[^:/?#@\s]*:)(?!\d{1,5}\W)([^@\n]{1,300})(@)")
#: What is left of a password after masking: of a URI's user, adjacent parameters of a URI, or a keyword.
_MASKED = re.compile(
    rf"(?i):\*\*\*(?=@)"
    rf"|(?P<separator>[?&]){_SECRET_KEYWORDS}=\*\*\*(?:&{_SECRET_KEYWORDS}=\*\*\*)*(?P<more>&?)"
    rf"|\s*\b{_SECRET_KEYWORDS}\s*=\s*\*\*\*"
)
_SECRET_PROPERTY = re.compile(
    r"(?i)(?:password|passwd|secret|credential|jaas|user\.info|api\.key|private\.key|key\.pem"
    r"|oauthbearer\.config|oauthbearer\.extensions|(?:^|[._-])token$)"
)


def mask_connection(text: str) -> str:
    """Return a connection string, or any text holding one, without the passwords in it.

    >>> mask_connection("host=db password='top secret' user=me")
    'host=db password=*** user=me'
    >>> mask_connection("postgresql://me:secret@db/shop")
    'postgresql://me:***@db/shop'
    """
    text = _KEYWORD.sub(rf"\g<1>{MASK}", text)
    text = _USERINFO.sub(rf"\g<1>{MASK}\g<3>", text)
    text = _USERINFO_ODD.sub(_mask_odd, text)
    return _USERINFO_BLANK.sub(rf"\g<1>{MASK}\g<3>", text)


def without_passwords(text: str) -> str:
    """Return a connection string without its passwords.

    >>> without_passwords("host=db password='top secret' user=me")
    'host=db user=me'
    >>> without_passwords("postgresql://me:secret@db/shop?password=x&sslmode=require")
    'postgresql://me@db/shop?sslmode=require'
    """
    return _MASKED.sub(
        lambda match: match["separator"] if match["more"] else "", mask_connection(text)
    ).strip()


def _mask_odd(match: re.Match[str]) -> str:
    another_uri = match[2].startswith(MASK + "@") and "://" in match[2]
    if match[2] == MASK or another_uri:
        return match[0]
    return match[1] + MASK + match[3]


def is_secret(key: str) -> bool:
    """Return whether the property ``key`` holds a secret (sasl.password, basic.auth.user.info, …)."""
    return _SECRET_PROPERTY.search(key) is not None


def mask_property(key: str, value: str) -> str:
    """Return the value of a librdkafka or registry property as it may be shown.

    >>> mask_property("sasl.password", "secret")
    '***'
    """
    if not is_secret(key):
        return mask_connection(value)
    if key.lower().endswith("user.info") and ":" in value:
        return value.split(":", 1)[0] + ":" + MASK
    return MASK
