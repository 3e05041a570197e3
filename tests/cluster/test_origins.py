"""Host names and origins, as settings and headers have them."""

from pathlib import Path
from typing import Any

import pytest

from quire.cluster.config.origins import HOST_LENGTH, name_in, origin_in
from quire.cluster.config.serve import load_config
from quire.cluster.config.settings import ConfigInvalid
from quire.cluster.standalone.config import StandaloneConfig


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("N1.Example.Org.:80", "n1.example.org"),
        ("a_b:", "a_b"),
        ("127.0.0.1:7001", ""),
        ("[::1]", ""),
        ("[::ffff:10.0.0.1]:1", ""),
        ("127.1", "127.1"),  # No browser writes an address so; other programs may look the name up.
        ("2130706433", "2130706433"),
        ("::1", None),
        ("[127.0.0.1]", None),
        ("[fe80::1%25a]", None),
        (".", None),
        ("", None),
        ("ü.example", None),
        ("a" * (HOST_LENGTH - 6) + ":70011", "a" * (HOST_LENGTH - 6)),
        ("a" * (HOST_LENGTH - 5) + ":70011", None),
    ],
)
def test_the_name_in_a_host(host: str, name: str | None) -> None:
    assert name_in(host) == name


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("HTTP://A.example:80", "http://a.example"),
        ("https://a.example:443", "https://a.example"),
        ("https://a.example:80", "https://a.example:80"),
        ("http://[::80]:80", "http://[::80]"),
        ("http://[::80]", "http://[::80]"),
        ("app-x://main", "app-x://main"),
        ("null", None),
        ("http://a.example/", None),
        ("http://x@a.example", None),
        ("http://a.example http://b.example", None),
        ("http://", None),
        ("", None),
    ],
)
def test_the_origin_in_a_header(text: str, origin: str | None) -> None:
    assert origin_in(text) == origin


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"allow": ["a:7001"]}, "flag --allow: 'a:7001' is not a host name; give the name alone"),
        ({"allow": "*"}, "flag --allow: '*' is not a host name"),
        ({"allow": "10.0.0.1"}, "flag --allow: '10.0.0.1' is not a host name"),
        ({"allow": "null"}, "flag --allow: 'null' is not an origin; write it as in https://"),
        ({"allow": "http://*"}, "flag --allow: 'http://*' is not an origin"),
        ({"allow": ["http://a", "http://a/x"]}, "flag --allow: 'http://a/x' is not an origin"),
    ],
)
def test_a_setting_that_is_no_name_or_origin_is_refused_with_a_sentence(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        load_config(
            {"node": "n1", "listen": "127.0.0.1:7001", "members": "n1=127.0.0.1:7001", "data_dir": "x", **given}
        )

    assert refused.value.problems[0].startswith(problem)


def test_names_and_origins_are_lists_or_separated_by_commas() -> None:
    separated: tuple[Any, Any] = (
        "A.example, HTTPS://a.example:443, b.example.",
        ["A.example", "HTTPS://a.example:443,b.example."],
    )
    for texts in separated:
        config = StandaloneConfig(listen="127.0.0.1:7001", data_dir=Path("x"), allow=texts)
        assert config.allow == ("a.example", "https://a.example", "b.example")
