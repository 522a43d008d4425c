"""Addresses without their secrets, and with them again."""

from __future__ import annotations

import signal

import pytest

from fedpriv.untrusted import addresses
from fedpriv.untrusted.addresses import hide_secrets, keep_secrets, with_secrets, without_secrets
from fedpriv.untrusted.names import printable


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_whole", {})


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("http://host:5000", "http://host:5000"),
        ("http://me:hunter2@host:5000/x", "http://me:***@host:5000/x"),
        ("https://t0ken@host", "https://***@host"),
        ("http://:hunter2@host", "http://:***@host"),
        ("http://me:a/b@c#d@host", "http://me:***@host"),
        ("http://me:hunter2@[::1]:5000", "http://me:***@[::1]:5000"),
        ("http://me:hunter2@[::1", "http://me:***@[::1"),
        ("http://me:hunter2@host:99999", "http://me:***@host:99999"),
        ("postgresql+psycopg2://me:hunter2@host/db", "postgresql+psycopg2://me:***@host/db"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("postgresql://host/db?user=me&password=hunter2&x=1", "postgresql://host/db?user=me&password=***&x=1"),
        ("https://host/?access_token=hunter2", "https://host/?access_token=***"),
        ("mssql+pyodbc:///?odbc_connect=PWD%3Dhunter2", "mssql+pyodbc:///?odbc_connect=***"),
        ("http://me:hunt'er\"2`@host:5000", "http://me:***@host:5000"),
        ("https://t0k'en@host", "https://***@host"),
        ("postgresql://host/db?password=hunt'er2&x=1", "postgresql://host/db?password=***&x=1"),
        ("postgresql://host/db?password=hunt@er2", "postgresql://host/db?password=***"),
        ("https://host/??a&b=1?my_api_key_2=hunter2;x=1", "https://host/??a&b=1?my_api_key_2=***;x=1"),
        (f"{'s' * 40}://me:hunter2@host", f"{'s' * 40}://me:***@host"),
        ("sqlite:////home/me:x@y/mlflow.db", "sqlite:////home/me:x@y/mlflow.db"),
    ],
)
def test_a_secret_is_replaced_and_kept_in_memory(uri: str, shown: str) -> None:
    assert without_secrets(uri) == shown
    assert without_secrets(f"it says '{uri}', twice: {uri}") == f"it says '{shown}', twice: {shown}"
    assert with_secrets(shown) == (None if "***" in shown else shown)
    assert keep_secrets(uri) == shown
    assert with_secrets(shown) == uri
    assert keep_secrets(shown) == shown and with_secrets(shown) == uri  # what is shown already has none


def test_of_several_addresses_without_a_space_between_them_none_shows_its_secret() -> None:
    text = "'sqlite:////a@b','http://me:hunter2@host','http://you:other@host/?key=x'"
    assert without_secrets(text) == "'sqlite:////a@b','http://me:***@host/?key=***'"


def test_a_space_belongs_to_the_secret_where_the_text_is_one_address() -> None:
    uri, shown = "http://me:hunt er2@host", "http://me:***@host"
    assert keep_secrets(uri) == shown and with_secrets(shown) == uri
    assert hide_secrets(f"it says {uri!r}") == f"it says {shown!r}"


def test_a_secret_that_stands_alone_is_replaced_where_it_is_known() -> None:
    keep_secrets("http://me:hunt%40er2@host")
    assert hide_secrets("Invalid port 'hunt%40er2', or hunt@er2; http://you:other@host") == (
        "Invalid port '***', or ***; http://you:***@host"
    )


@pytest.mark.parametrize(
    ("start", "part"), [("", "a."), ("http://host/?", "?"), ("http://host/?", "key"), ("http://host/?", "?key")]
)
def test_a_long_text_does_not_hold_up_its_reader(start: str, part: str) -> None:
    """A search whose time grows with the square of the length would take hours; it is broken off."""

    def stop(*_: object) -> None:
        raise TimeoutError

    text = start + part * (10**6 // len(part))
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    try:
        assert hide_secrets(text) == text
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 日本", "plain é 日本"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b[31mred\x1b]0;title\x07", r"\x1b[31mred\x1b]0;title\x07"),
        ("a\rb\x9bc\u202ed\udcff", r"a\rb\x9bc\u202ed\udcff"),
    ],
)
def test_no_character_of_a_name_acts_on_the_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown
    shown.encode()
