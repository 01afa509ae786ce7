"""Pages of other sites, and names that a site could own, are refused unless the operator allows them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from capital_letters import make_client, make_service
from dragoman.serving.page_policy import PagePolicy, check_names
from dragoman.serving.settings import ServerSettings
from expected_errors import raises_code

FIELDS = {"q": "one", "source": "en", "target": "de"}
HOST = "127.0.0.1:5000"
CROSS_SITE = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


def post(client: TestClient, headers: dict[str, str], **options: Any) -> int:
    """Return the status of a translation with these headers."""
    return client.post("/translate", headers={"Host": HOST} | headers, **(options or {"json": FIELDS})).status_code


@pytest.fixture(scope="module")
def client() -> TestClient:
    return make_client(make_service())


def test_other_sites_and_names_are_refused(subtests: pytest.Subtests, client: TestClient) -> None:
    for headers, status in [
        ({}, 200),
        ({"Origin": "http://127.0.0.1:5000", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Host": "LOCALHOST.:8080", "Origin": "http://localhost:8080"}, 200),
        ({"Host": "[::1]:5000", "Origin": "http://[::1]:5000"}, 200),
        ({"Host": "translate", "Origin": "http://translate"}, 200),
        ({"Host": "translate", "Origin": "https://translate:443"}, 200),
        ({"Host": "dragoman.prod.svc.cluster.local:5000"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Referer": "https://weblate.example/"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://evil.example", **CROSS_SITE}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Origin": "http://127.0.0.1:5001", "Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "https://127.0.0.1"}, 403),
        ({"Origin": "http://127.0.0.1:5000@evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:5000.evil.example"}, 403),
        ({"Origin": "chrome-extension://abcdefgh"}, 403),
        ({"Sec-Fetch-Site": "Cross-Site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "EVIL.example.:5000"}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "127.0.0.1:5000", "X-Forwarded-Host": "evil.example", "Origin": "http://evil.example"}, 403),
        ({"Host": "evil.example", "X-Forwarded-Host": "localhost"}, 403),
    ]:
        with subtests.test(headers=headers, status=status):
            assert post(client, headers) == status


def test_refusals_are_one_line_that_names_the_option(client: TestClient) -> None:
    host = client.post("/translate", headers={"Host": "evil.example"}, json=FIELDS).json()["error"]
    origin = client.post("/v1/translate", headers={"Origin": "http://evil.example"}, json={}).json()["error"]
    assert "evil.example" in host
    assert "--allow-host" in host
    assert "http://evil.example" in origin["message"]
    assert "--allow-origin" in origin["message"]
    assert "\n" not in host + origin["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("OPTIONS", "/translate"), ("GET", "/languages"), ("GET", "/translate?q=one&source=en&target=de"), ("POST", "/v1/files"),
     ("DELETE", "/v1/files/x"), ("POST", "/v2/glossaries"), ("GET", "/v1/explain?text=a&source=en&target=de")],
)  # fmt: skip
def test_every_route_refuses_other_sites(client: TestClient, method: str, path: str) -> None:
    for headers in ({"Origin": "http://evil.example"}, CROSS_SITE):
        answer = client.request(method, path, headers=headers)
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers


def test_health_is_answered_by_any_name(client: TestClient) -> None:
    assert client.get("/livez", headers={"Host": "evil.example"}).status_code == 200


def test_links_of_other_sites_lead_to_the_page_only(client: TestClient) -> None:
    assert client.get("/", headers=LINK).status_code == 200
    assert client.get("/download_file/x", headers=LINK).status_code == 404
    assert client.get("/translate?q=one&source=en&target=de", headers=LINK).status_code == 403
    assert client.post("/", headers=LINK).status_code == 403
    assert client.get("/", headers=LINK | {"Sec-Fetch-Dest": "iframe"}).status_code == 403


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("application/vnd.api+json", 200),
        ("text/plain", 415),
        ("text/plain;application/json", 415),
        ("application/octet-stream", 415),
        ("text/json", 415),
        ("application/x-www-form-urlencoded", 415),
        ("", 415),
        (None, 415),
    ],
)
def test_json_needs_its_content_type(client: TestClient, content_type: str | None, status: int) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    assert post(client, headers, content=json.dumps(FIELDS)) == status


def test_allowed_sites_and_names_are_served() -> None:
    settings = ServerSettings(
        allowed_origins=("https://App.Example/", "moz-extension://*", "null"), allowed_hosts=("Translate.Example.",)
    )
    client = make_client(make_service(), settings)
    for origin in (
        "https://app.example",
        "https://app.example:443",
        "moz-extension://0a1b",
        "null",
        "https://translate.example",
    ):
        headers = {"Host": HOST, "Origin": origin, "Sec-Fetch-Site": "cross-site"}
        answer = client.post("/translate", headers=headers, json=FIELDS)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, origin)
        assert "access-control-allow-credentials" not in answer.headers
        preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type,authorization"}
        assert client.options("/translate", headers=headers | preflight).status_code == 200
    assert post(client, {"Host": "translate.example"}) == 200
    for headers in ({"Origin": "http://app.example"}, {"Origin": "https://app.example.evil"}, {"Host": "app.example"}):
        assert post(client, headers) == 403


def test_star_allows_everything() -> None:
    client = make_client(make_service(), ServerSettings(allowed_origins=("*",), allowed_hosts=("*",)))
    assert post(client, {"Host": "any.example", "Origin": "http://other.example", "Sec-Fetch-Site": "cross-site"}) == 200
    assert post(client, CROSS_SITE) == 200


def test_address_to_listen_on_is_a_name_of_the_server() -> None:
    policy = PagePolicy("Translate.Example")
    assert policy.allows_host("translate.example:5000")
    assert not policy.allows_host("other.example:5000")
    assert PagePolicy("0.0.0.0").allows_host("192.0.2.7:5000")
    assert not PagePolicy("0.0.0.0").allows_host("evil.example")


def test_names_that_no_request_has_are_refused() -> None:
    origins = ["*", "null", "https://a.example", "http://localhost:3000", "moz-extension://*", "chrome-extension://abc"]
    check_names(origins, ["*", "t.example.org", "a.example:80"], ["*", "127.0.0.1", "::1", "172.16.0.0/12"])
    for origin in ("app.example.org", "localhost:3000", "https://a.example/page", ""):
        with raises_code("invalid-option", f"--allow-origin {origin}: is no site"):
            check_names([origin], [], [])
    for host in ("https://t.example.org", "*.example.org", ""):
        with raises_code("invalid-option", f"--allow-host {host}: is no name"):
            check_names([], [host], [])
    for proxy in ("nginx", "172.16.0.1/12", "http://10.0.0.1"):
        with raises_code("invalid-option", f"--proxy {proxy}: is no address"):
            check_names([], [], [proxy])
