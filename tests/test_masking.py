"""Values of credentials within a text."""

from __future__ import annotations

import json

import pytest

from connectgroup.masking import masked_text

OPTIONS = json.dumps({"url": "jdbc:x", "password": 'pass"word; with, all', "user": "ada"})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("password=hunter2 next", "password=[hidden] next"),
        ("password='two words' user=x", "password=[hidden] user=x"),
        ("{'my.secret': 'two words'} next", "{'my.secret': [hidden]} next"),
        (OPTIONS, '{"url": "jdbc:x", "password": [hidden], "user": "ada"}'),
        (json.dumps(json.dumps({"token": "two words", "x": "y"})), r'"{\"token\": [hidden], \"x\": \"y\"}"'),
        ("Endpoint=sb://h/;SharedAccessKey=abc=;x", "Endpoint=sb://h/;SharedAccessKey=[hidden];x"),
        ("AccountName=a;AccountKey=abc==", "AccountName=a;AccountKey=[hidden]"),
        ('{"type": "service_account", "private_key": "a b"}', '{"type": "service_account", "private_key": [hidden]}'),
        ("api_key=abc api-key=abc", "api_key=[hidden] api-key=[hidden]"),
        ('{"password": "cut of', '{"password": [hidden]'),
        ('{"password": "", "x": "y"}', '{"password": [hidden], "x": "y"}'),
        ("jdbc:postgresql://ada:pw@host/db", "jdbc:postgresql://[hidden]@host/db"),
        ("API_TOKEN=abc PASSWORD: abc", "API_TOKEN=[hidden] PASSWORD: abc"),
        ("my.\u017fecret=abc", "my.\u017fecret=[hidden]"),  # a letter that is an s, whatever the case
    ],
)
def test_value_of_a_credential_is_hidden_to_its_end(text: str, shown: str) -> None:
    assert masked_text(text) == shown


@pytest.mark.timeout(60)
@pytest.mark.parametrize("part", ["x", "password", "password.", '"', "\\", "://", "secret=", "token: '"])
def test_long_text_is_masked_in_linear_time(part: str) -> None:
    assert masked_text(part * (1 << 16)) is not None
