"""Who may look and who may act, request by request."""

import pytest

from flatout.web.guard import LOOPBACK, Guard, host_name

TOKEN = "a-token-of-some-length"
HERE = Guard(TOKEN, LOOPBACK, on_loopback=True, cookie="flatout_8420")
OPEN = Guard(TOKEN, (*LOOPBACK, "gpu-box"), on_loopback=False, cookie="flatout_8420")
COOKIE = {"flatout_8420": TOKEN}
OWN = {"host": "127.0.0.1:8420", "origin": "http://127.0.0.1:8420"}


@pytest.mark.parametrize("host", ["127.0.0.1:8420", "localhost:9999", "[::1]:8420", "LOCALHOST"])
def test_looking_from_this_machine_needs_no_token(host: str) -> None:
    assert HERE.refusal("GET", {"host": host}, {}) is None


@pytest.mark.parametrize("host", ["evil.example:8420", "127.0.0.1.evil.example", "", "localhost.evil.example:8420"])
def test_a_name_that_only_points_here_is_refused(host: str) -> None:
    refused = HERE.refusal("GET", {"host": host, "authorization": f"Bearer {TOKEN}"}, COOKIE)
    assert refused is not None
    assert refused[0] == 421


def test_acting_needs_the_token_and_the_own_page() -> None:
    codes = {
        "nothing": HERE.refusal("POST", OWN, {}),
        "wrong cookie": HERE.refusal("POST", OWN, {"flatout_8420": TOKEN[:-1]}),
        "no origin": HERE.refusal("POST", {"host": OWN["host"]}, COOKIE),
        "foreign origin": HERE.refusal("POST", {**OWN, "origin": "http://evil.example"}, COOKIE),
        "another port": HERE.refusal("POST", {**OWN, "origin": "http://127.0.0.1:9"}, COOKIE),
        "opaque origin": HERE.refusal("POST", {**OWN, "origin": "null"}, COOKIE),
        "another site": HERE.refusal("POST", {**OWN, "sec-fetch-site": "cross-site"}, COOKIE),
    }
    assert all(codes.values()), codes
    assert HERE.refusal("POST", OWN, COOKIE) is None
    assert HERE.refusal("POST", {"host": OWN["host"], "authorization": f"Bearer {TOKEN}"}, {}) is None


def test_other_sites_may_lead_here_but_not_read() -> None:
    asked = {"host": "localhost:8420", "sec-fetch-site": "cross-site"}
    assert HERE.refusal("GET", {**asked, "sec-fetch-mode": "navigate"}, {}) is None
    assert HERE.refusal("GET", {**asked, "sec-fetch-mode": "no-cors"}, {}) is not None
    assert HERE.refusal("POST", {**asked, "sec-fetch-mode": "navigate"}, COOKIE) is not None


def test_beyond_this_machine_looking_needs_the_token_too() -> None:
    asked = {"host": "gpu-box:8420"}
    refused = OPEN.refusal("GET", asked, {})
    assert refused is not None
    assert refused[0] == 401
    assert OPEN.refusal("GET", asked, COOKIE) is None


def test_names_of_hosts() -> None:
    assert [host_name(each) for each in ("A.b:1", "[::1]:2", "x.", "")] == ["a.b", "::1", "x", ""]
