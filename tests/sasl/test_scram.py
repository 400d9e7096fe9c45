"""SCRAM-SHA-256 by the test vector of RFC 7677, and rejected messages of RFC 5802's exchange."""

from __future__ import annotations

import base64

import pytest

from connectgroup.sasl import Authenticator, Login, SaslError, ScramClient, ScramServer, Verifier, verifier_of

CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FIRST = f"n,,n=user,r={CLIENT_NONCE}".encode()
SERVER_FIRST = f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
CLIENT_FINAL = f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
"""RFC 7677, section 3: user ``user``, password ``pencil``."""


def verifier() -> Verifier:
    return verifier_of("pencil", salt=base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))


def test_client_sends_the_messages_of_rfc_7677_and_accepts_its_server() -> None:
    client = ScramClient("user", "pencil", nonce=CLIENT_NONCE)
    assert client.first() == CLIENT_FIRST
    assert client.final(SERVER_FIRST) == CLIENT_FINAL
    client.finish(SERVER_FINAL)


def test_server_sends_the_messages_of_rfc_7677_and_accepts_its_client() -> None:
    server = ScramServer(nonce=SERVER_NONCE)
    assert server.name(CLIENT_FIRST) == "user"
    assert server.first(verifier()) == SERVER_FIRST
    assert server.final(CLIENT_FINAL) == SERVER_FINAL


def test_server_rejects_a_wrong_password() -> None:
    client, server = ScramClient("user", "pen", nonce=CLIENT_NONCE), ScramServer(nonce=SERVER_NONCE)
    server.name(client.first())
    final = client.final(server.first(verifier()))
    with pytest.raises(SaslError, match="the proof is wrong"):
        server.final(final)


def test_client_rejects_a_server_that_does_not_know_the_password() -> None:
    client = ScramClient("user", "pencil", nonce=CLIENT_NONCE)
    client.final(SERVER_FIRST)
    with pytest.raises(SaslError, match="does not know the password's verifier"):
        client.finish(b"v=" + base64.b64encode(bytes(32)))


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (f"r={CLIENT_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce does not extend"),
        (f"r=other{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce does not extend"),
        (f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1", "iterations: got 1"),
        (f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=99999999", "iterations: got 99999999"),
        (f"r={CLIENT_NONCE}{SERVER_NONCE},s=!,i=4096", "not base64"),
        ("e=other-error", "without the attribute r"),
        (f"m=x,{SERVER_FIRST.decode()}", "mandatory extensions"),
    ],
)
def test_client_rejects_a_first_message(message: str, why: str) -> None:
    with pytest.raises(SaslError, match=why):
        ScramClient("user", "pencil", nonce=CLIENT_NONCE).final(message.encode())


@pytest.mark.parametrize(
    "final",
    [
        b"",
        b"\xff",
        CLIENT_FINAL.replace(b"c=biws", b"c=eSws"),
        CLIENT_FINAL.replace(b"r=rOpr", b"r=xOpr"),
        CLIENT_FINAL.rpartition(b",p=")[0] + b",p=AAAA",
        CLIENT_FINAL.rpartition(b",p=")[0],
    ],
)
def test_server_rejects_a_final_message(final: bytes) -> None:
    """Also a final message of another exchange (CVE-2024-56128)."""
    server = ScramServer(nonce=SERVER_NONCE)
    server.name(CLIENT_FIRST)
    server.first(verifier())
    with pytest.raises(SaslError):
        server.final(final)


@pytest.mark.parametrize(
    "first",
    [b"", b"n,,n=user", b"p=tls-unique,,n=user,r=" + b"x" * 20, b"n,,n=user,r=short", b"n,,m=x," + CLIENT_FIRST[3:]],
)
def test_server_rejects_a_first_message(first: bytes) -> None:
    with pytest.raises(SaslError):
        ScramServer(nonce=SERVER_NONCE).name(first)


def test_unknown_names_look_like_users() -> None:
    """Each has a salt of its own, which is the same at the next attempt."""

    def answer(name: str) -> bytes:
        login = Login(authenticator)
        assert login.choose("SCRAM-SHA-256")
        return login.answer(f"n,,n={name},r={CLIENT_NONCE}".encode()).partition(b",")[2]

    authenticator = Authenticator({"alice": "a", "bob": "b"})
    names = "alice", "bob", "eve", "mallory"
    assert [answer(name) for name in names] == [answer(name) for name in names]
    assert len({answer(name) for name in names}) == len(names)
    assert len({len(answer(name)) for name in names}) == 1
    assert Authenticator({}).verifier("eve").salt != authenticator.verifier("eve").salt


def test_no_secret_is_in_a_repr() -> None:
    assert "pencil" not in repr(verifier())
    assert repr(verifier()) == "Verifier()"
