"""Environments: bounds at both edges, what an update merges and clears, archive and deletion (contract 7)."""

from typing import Any

import pytest

from .conftest import Api
from .kinds import ok

MANAGERS = ("apt", "cargo", "gem", "go", "npm", "pip")
EMPTY: dict[str, Any] = {"type": "packages", **{manager: [] for manager in MANAGERS}}


def limited(*hosts: str, **more: Any) -> dict[str, Any]:
    return {"type": "cloud", "networking": {"type": "limited", "allowed_hosts": list(hosts), **more}}


def packages(**lists: Any) -> dict[str, Any]:
    return {"type": "cloud", "packages": lists}


OPEN_WITH_HOSTS: dict[str, Any] = {
    "type": "cloud",
    "networking": {"type": "unrestricted", "allowed_hosts": []},
}


async def change(api: Api, environment: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return await ok(api.post(f"/v1/environments/{environment['id']}", fields))


EDGES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "name": ({"name": "\U0001f408" * 256}, {"name": "n" * 257}, "name: must have at most 256 characters"),
    "name at least": ({"name": "n"}, {"name": ""}, "name: must have at least 1 characters"),
    "description": (
        {"description": "d" * 1024},
        {"description": "d" * 1025},
        "description: must have at most 1024 characters",
    ),
    "hosts": (
        {"config": limited(*(f"h{n}.example.com" for n in range(1000)))},
        {"config": limited(*(f"h{n}.example.com" for n in range(1001)))},
        "config.networking.allowed_hosts: at most 1000 hosts",
    ),
    "host": (
        {"config": limited(".".join(["a" * 63] * 3 + ["b" * 61]))},
        {"config": limited(".".join(["a" * 63] * 3 + ["b" * 62]))},
        "config.networking.allowed_hosts[0]: ",
    ),
    "package": (
        {"config": packages(pip=["p" * 512])},
        {"config": packages(pip=["a", "p" * 513])},
        "config.packages.pip[1]: must have at most 512 characters",
    ),
    "package at least": (
        {"config": packages(npm=["p"])},
        {"config": packages(npm=[""])},
        "config.packages.npm[0]: must have at least 1 characters",
    ),
}


@pytest.mark.parametrize("case", EDGES)
async def test_each_bound_is_taken_and_one_more_refused_whether_made_or_changed(api: Api, case: str) -> None:
    good, bad, said = EDGES[case]
    await ok(api.post("/v1/environments", {"name": "E", **good}))
    made = await api.environment()
    for request in (
        api.post("/v1/environments", {"name": "E", **bad}),
        api.post(f"/v1/environments/{made['id']}", bad),
    ):
        response = await request
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith(said), response.text
    assert await ok(api.get(f"/v1/environments/{made['id']}")) == made
    changed = await change(api, made, **good)
    assert changed["updated_at"] > made["updated_at"]


WRONG: list[tuple[Any, ...]] = [
    ({"name": 1}, "name: Input should be a valid string"),
    ({"description": []}, "description: Input should be a valid string"),
    ({"scope": "team"}, 'scope: "team" is not a valid value'),
    ({"scope": "account"}, 'scope: "account" is not supported; use "organization"'),
    ({"state": "active"}, "state: Extra inputs are not permitted"),
    ({"config": "cloud"}, "config: Input should be a valid object"),
    ({"config": {}}, "config.type: Field required"),
    ({"config": {"type": None}}, "config.type: Input should be a valid string, got null"),
    ({"config": {"type": "cloud", "image": "x"}}, "config.image: Extra inputs are not permitted"),
    ({"config": {"type": "cloud", "networking": {"type": "none"}}}, 'config.networking.type: "none"'),
    ({"config": limited(allow_everything=True)}, "config.networking.allow_everything: Extra inputs"),
    ({"config": limited(allow_mcp_servers="yes")}, "config.networking.allow_mcp_servers: Input should"),
    ({"config": OPEN_WITH_HOSTS}, "config.networking.allowed_hosts: Extra inputs are not permitted"),
    ({"config": packages(brew=["x"])}, "config.packages.brew: Extra inputs are not permitted"),
    ({"config": packages(pip="x")}, "config.packages.pip: Input should be a valid list"),
    ({"config": packages(pip=[1])}, "config.packages.pip[0]: Input should be a valid string"),
    ({"config": {"type": "self_hosted", "packages": {}}}, "config.packages: Extra inputs"),
    ({"metadata": {"k": "v" * 513}}, "metadata.k: must have at most 512"),
]


async def test_what_does_not_fit_is_refused_with_its_whole_path(api: Api) -> None:
    for fields, said in WRONG:
        response = await api.post("/v1/environments", {"name": "E", **fields})
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["message"].startswith(said), error
        if "metadata" in fields:
            assert error["details"]["error_code"] == "invalid_metadata"


async def test_hosts_are_bare_names_with_wildcards_and_kept_as_they_are_sent(api: Api) -> None:
    hosts = ["API.Example.com", "*.example.org", "localhost", "10.1.2.3", "xn--bcher-kva.example"]
    made = await api.environment(config=limited(*hosts))
    assert made["config"]["networking"] == {
        "type": "limited",
        "allowed_hosts": hosts,
        "allow_mcp_servers": False,
        "allow_package_managers": False,
    }
    for host in (
        *("https://a.example", "a.example:443", "a.example/x", "*", "*.", "a.*.example", "**.example", "a b"),
        *(
            "",
            ".example",
            "a..example",
            "-a.example",
            "b\u00fccher.example",
            "a_b.example",
            "::1",
            "a.example.",
        ),
    ):
        response = await api.post("/v1/environments", {"name": "E", "config": limited("ok.example", host)})
        assert response.status_code == 400, host
        assert response.json()["error"]["message"].startswith("config.networking.allowed_hosts[1]: ")


async def test_an_empty_list_of_hosts_is_taken(api: Api) -> None:
    assert (await api.environment(config=limited()))["config"]["networking"]["allowed_hosts"] == []


async def test_null_and_absence_inside_the_config_keep_what_is_there(api: Api) -> None:
    config = limited("a.example", allow_mcp_servers=True, allow_package_managers=True)
    made = await api.environment(config={**config, "packages": {"pip": ["a"], "npm": ["b"]}})
    for kept in (
        {"config": None},
        {"config": {"type": "cloud"}},
        {"config": {"type": "cloud", "networking": None, "packages": None}},
        {"config": {"type": "cloud", "networking": {"type": "limited"}, "packages": {}}},
        {"config": limited("a.example", allow_mcp_servers=None, allow_package_managers=None)},
        {"config": packages(pip=None, npm=["b"], type="packages")},
        {"name": None, "scope": None, "metadata": None},
        {"scope": "organization"},
        {},
    ):
        assert await change(api, made, **kept) == made, kept


async def test_lists_are_replaced_and_emptied_one_by_one(api: Api) -> None:
    made = await api.environment(config=packages(pip=["a"], npm=["b"], apt=["c"]))
    changed = await change(api, made, config=packages(pip=["x", "y"], npm=[]))
    assert changed["config"]["packages"] == {**EMPTY, "pip": ["x", "y"], "apt": ["c"]}
    hosts = await api.environment(config=limited("a.example", "b.example", allow_mcp_servers=True))
    changed = await change(api, hosts, config=limited("c.example"))
    assert changed["config"]["networking"]["allowed_hosts"] == ["c.example"]
    assert changed["config"]["networking"]["allow_mcp_servers"] is True


async def test_networking_changes_its_type_and_forgets_what_the_other_had(api: Api) -> None:
    made = await api.environment(config=limited("a.example", allow_mcp_servers=True))
    opened = await change(api, made, config={"type": "cloud", "networking": {"type": "unrestricted"}})
    assert opened["config"]["networking"] == {"type": "unrestricted"}
    closed = await change(api, opened, config={"type": "cloud", "networking": {"type": "limited"}})
    assert closed["config"]["networking"] == {
        "type": "limited",
        "allowed_hosts": [],
        "allow_mcp_servers": False,
        "allow_package_managers": False,
    }


async def test_packages_under_limited_networking_need_package_managers_however_it_comes_about(
    api: Api,
) -> None:
    said = "config.networking.allow_package_managers: must be true when packages are given"
    with_packages = await api.environment(config=packages(pip=["a"]))
    closed = await api.environment(config=limited("a.example"))
    allowing = limited("a.example", allow_package_managers=True)
    both = await api.environment(config={**allowing, **packages(pip=["a"])})
    for environment, config in (
        (with_packages, limited("a.example")),
        (closed, packages(pip=["a"])),
        (both, limited("a.example", allow_package_managers=False)),
    ):
        path = f"/v1/environments/{environment['id']}"
        response = await api.post(path, {"config": config})
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith(said)
        assert await ok(api.get(path)) == environment
    assert (await change(api, closed, config={**allowing, **packages(pip=["a"])}))["config"]["packages"][
        "pip"
    ]
    emptied = {**limited(allow_package_managers=False), **packages(pip=[])}
    assert (await change(api, both, config=emptied))["config"]["packages"] == EMPTY


async def test_the_type_of_the_config_never_changes_in_either_direction(api: Api) -> None:
    for old, new in (("cloud", "self_hosted"), ("self_hosted", "cloud")):
        made = await api.environment(config={"type": old})
        response = await api.post(f"/v1/environments/{made['id']}", {"config": {"type": new}})
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["details"]["error_code"] == "invalid_config_type_change"
        assert error["message"].startswith(f'config.type: cannot change from "{old}" to "{new}"')
        assert await change(api, made, config={"type": old}) == made


async def test_names_need_not_be_unique(api: Api) -> None:
    first, second = await api.environment(name="same"), await api.environment(name="same")
    assert first["id"] != second["id"]


async def test_an_archived_environment_keeps_its_sessions_and_can_be_deleted_without_them(api: Api) -> None:
    session = await api.session()
    path = f"/v1/environments/{session['environment_id']}"
    archived = await ok(api.post(f"{path}/archive"))
    assert archived["updated_at"] == archived["archived_at"]
    event = {"type": "user.message", "content": [{"type": "text", "text": "hi"}]}
    await ok(api.post(f"/v1/sessions/{session['id']}/events", {"events": [event]}))
    assert (await api.http.delete(path)).status_code == 400
    assert await ok(api.get(path)) == archived
    other = await api.environment()
    await ok(api.post(f"/v1/environments/{other['id']}/archive"))
    await ok(api.http.delete(f"/v1/environments/{other['id']}"))


async def test_an_archived_session_holds_its_environment_too(api: Api) -> None:
    session = await api.session()
    await ok(api.post(f"/v1/sessions/{session['id']}/archive"))
    response = await api.http.delete(f"/v1/environments/{session['environment_id']}")
    assert response.status_code == 400
    assert session["environment_id"] in response.json()["error"]["message"]


async def test_a_deleted_environment_is_not_found_by_any_request(api: Api) -> None:
    made = await api.environment()
    path = f"/v1/environments/{made['id']}"
    await ok(api.http.delete(path))
    agent = (await api.agent())["id"]
    for request in (
        api.get(path),
        api.post(path, {"name": "x"}),
        api.post(f"{path}/archive"),
        api.http.delete(path),
        api.post("/v1/sessions", {"agent": agent, "environment_id": made["id"]}),
    ):
        response = await request
        assert response.status_code == 404
        error = response.json()["error"]
        assert made["id"] in error["message"]
        assert error["details"]["error_code"] == "environment_not_found"
    assert (await ok(api.get("/v1/environments?include_archived=true")))["data"] == []


async def test_domains_of_web_tools_must_be_allowed_by_a_limited_network(api: Api) -> None:
    environment = await api.environment(config=limited("docs.example.com", "*.example.org"))

    def fetching(*domains: str) -> list[dict[str, Any]]:
        configs = [{"name": "web_fetch", "allowed_domains": list(domains)}]
        return [{"type": "agent_toolset_20260401", "configs": configs}]

    session = await api.session(environment_id=environment["id"])
    for domain, status in (
        ("docs.example.com", 200),
        ("DOCS.example.com/", 200),
        ("a.b.example.org", 200),
        ("example.com", 400),
        ("example.org", 400),
        ("sub.docs.example.com", 400),
    ):
        tools = fetching(domain)
        agent = await api.agent(tools=tools)
        made = await api.post("/v1/sessions", {"agent": agent["id"], "environment_id": environment["id"]})
        changed = await api.post(f"/v1/sessions/{session['id']}", {"agent": {"tools": tools}})
        for response in (made, changed):
            assert response.status_code == status, (domain, response.text)
            if status == 400:
                assert response.json()["error"]["message"].startswith(f'agent.tools: "{domain}"')
    assert (await api.session(agent=agent["id"]))["status"] == "idle", "elsewhere it may"
