"""Skills and their versions: upload, lists, content, deletion (contract 17)."""

import io
import stat
import zipfile
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from anthropic import NotFoundError, RequestTooLargeError

from corral.wire.skills import LIMITS
from tests.contract.conftest import Api
from tests.contract.refusals import refused, undocumented

TOOLSET: dict[str, Any] = {"type": "agent_toolset_20260401"}
SCRIPT = b"#!/bin/sh\necho hello\n"


def about(name: str = "my-skill", description: str = "Does things.") -> bytes:
    return f"---\nname: {name}\ndescription: {description}\n---\n\n# How\n".encode()


def files(name: str = "my-skill", more: Mapping[str, bytes] | None = None) -> list[tuple[str, bytes]]:
    others = [(f"{name}/{path}", data) for path, data in (more or {}).items()]
    return [(f"{name}/SKILL.md", about(name)), *others]


def zipped(*entries: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, content in entries:
            archive.writestr(info, content)
    return out.getvalue()


async def made(api: Api, name: str = "my-skill", **fields: Any) -> Any:
    return await api.sdk.beta.skills.create(files=files(name), **fields)


async def posted(api: Api, path: str, *parts: tuple[str, bytes], **data: str) -> httpx.Response:
    """An upload by plain HTTP."""
    return await api.http.post(path, files=[("files[]", part) for part in parts], data=data)


async def content_of(api: Api, skill_id: str, version: str = "latest") -> zipfile.ZipFile:
    response = await api.sdk.beta.skills.versions.download(version, skill_id=skill_id)
    return zipfile.ZipFile(io.BytesIO(await response.read()))


async def test_an_upload_is_shown_as_documented(api: Api) -> None:
    skill = await made(api)
    assert undocumented(skill) == []
    assert (skill.type, skill.display_name, skill.source.type) == ("skill", "my-skill", "custom")
    assert skill.id.startswith("skill_01")
    assert await api.sdk.beta.skills.retrieve(skill.id) == skill
    version = await api.sdk.beta.skills.versions.retrieve("latest", skill_id=skill.id)
    assert undocumented(version) == []
    assert (version.id, version.skill_id, version.type) == (
        skill.latest_version_id,
        skill.id,
        "skill_version",
    )
    assert (version.name, version.description) == ("my-skill", "Does things.")
    assert version.id.startswith("skver_01")
    assert await api.sdk.beta.skills.versions.retrieve(version.id, skill_id=skill.id) == version


async def test_a_display_name_is_kept_and_need_not_be_unique(api: Api) -> None:
    first, second = await made(api, display_name="Größe"), await made(api, display_name="Größe")
    assert (first.display_name, second.display_name) == ("Größe", "Größe")
    await refused(made(api, display_name="x" * 256), "display_name", "255")
    response = await posted(api, "/v1/skills", files()[0], display_name="two\nlines")
    assert response.status_code == 400, response.text
    assert "display_name: must be a single line" in response.text


async def test_the_content_is_an_archive_of_one_folder_with_executable_bits(api: Api) -> None:
    sent = files(more={"scripts/run.sh": SCRIPT, "data/größe.txt": b"x" * 100_000, "empty": b""})
    skill = await api.sdk.beta.skills.create(files=sent)
    archive = await content_of(api, skill.id)
    assert {info.filename: archive.read(info) for info in archive.infolist()} == dict(sent)
    modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
    assert modes["my-skill/scripts/run.sh"] == stat.S_IFREG | 0o755
    assert modes["my-skill/SKILL.md"] == stat.S_IFREG | 0o644
    response = await api.get(f"/v1/skills/{skill.id}/versions/latest/content")
    assert response.headers["content-type"] == "application/zip"
    assert response.headers["content-disposition"] == "attachment; filename*=UTF-8''my-skill.zip"
    assert response.headers["x-content-type-options"] == "nosniff"


async def test_the_same_files_make_the_same_archive_however_they_are_sent(api: Api) -> None:
    sent = files(more={"b.txt": b"b", "a.txt": b"a", "run": SCRIPT})
    parts = await api.sdk.beta.skills.create(files=sent)
    run = zipfile.ZipInfo("my-skill/run", (2024, 2, 3, 4, 5, 6))
    run.external_attr = (stat.S_IFREG | 0o700) << 16
    folder = zipfile.ZipInfo("my-skill/")
    entries: list[Any] = [(folder, b""), *reversed(sent[:3]), (run, SCRIPT)]
    whole = await api.sdk.beta.skills.create(files=[("my-skill.zip", zipped(*entries))])
    paths = [f"/v1/skills/{skill.id}/versions/latest/content" for skill in (parts, whole)]
    first, second = [(await api.get(path)).content for path in paths]
    assert first == second


async def test_an_executable_bit_of_an_archive_is_kept_and_its_absence_too(api: Api) -> None:
    tool = zipfile.ZipInfo("my-skill/tool")
    tool.external_attr = (stat.S_IFREG | 0o755) << 16
    script = zipfile.ZipInfo("my-skill/script")
    script.external_attr = (stat.S_IFREG | 0o644) << 16
    body = zipped((tool, b"\x7fELF"), (script, SCRIPT), ("my-skill/SKILL.md", about()))
    skill = await api.sdk.beta.skills.create(files=[("s.zip", body)])
    archive = await content_of(api, skill.id)
    modes = {i.filename: stat.S_IMODE(i.external_attr >> 16) for i in archive.infolist()}
    assert (modes["my-skill/tool"], modes["my-skill/script"]) == (0o755, 0o644)


async def test_what_file_managers_leave_behind_is_left_out(api: Api) -> None:
    body = zipped(
        ("my-skill/SKILL.md", about()), ("my-skill/.DS_Store", b"x"), ("__MACOSX/my-skill/._SKILL.md", b"x")
    )
    skill = await api.sdk.beta.skills.create(files=[("s.zip", body)])
    assert (await content_of(api, skill.id)).namelist() == ["my-skill/SKILL.md"]


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ([], "files: Field required"),
        ([("SKILL.md", about())], "all files must be in one folder"),
        ([*files(), ("other/a", b"")], "all files must be in one folder"),
        ([("my-skill/skill.md", about())], "my-skill/SKILL.md is missing"),
        ([("my-skill/docs/SKILL.md", about())], "my-skill/SKILL.md is missing"),
        ([("other/SKILL.md", about())], "the folder is called 'other'"),
        ([("My_Skill/SKILL.md", about("My_Skill"))], "SKILL.md: name: must be"),
        ([(f"{'a' * 65}/SKILL.md", about("a" * 65))], "at most 64"),
        ([("s/SKILL.md", b"---\ndescription: d\nname: [s]\n---\n")], "name: Input should be a valid string"),
        ([("s/SKILL.md", b"---\nname: s\n---\n")], "description: Field required"),
        ([("s/SKILL.md", about("s", "x" * 1025))], "description: must have at most 1024"),
        ([("s/SKILL.md", b"# no front matter\n")], "must begin with a front matter"),
        ([("s/SKILL.md", b"---\nname: s\n")], "must begin with a front matter"),
        ([("s/SKILL.md", b"---\nname: s\nname: s\ndescription: d\n---\n")], "given more than once"),
        ([("s/SKILL.md", b"---\na: &x [1]\nb: *x\n---\n")], "must not use anchors"),
        ([("s/SKILL.md", b"---\nname: 's\n---\n")], "is no YAML"),
        ([("s/SKILL.md", b"---\na: " + b"[" * 20 + b"]" * 20 + b"\n---\n")], "too large"),
        ([("s/SKILL.md", b"---\nname: s\xff\n---\n")], "must be UTF-8"),
        ([("../s/SKILL.md", about("s"))], "must be relative"),
        ([("/s/SKILL.md", about("s"))], "must be relative"),
        ([*files(), ("my-skill//a", b"")], "must be relative"),
        ([*files(), ("my-skill/a\\..\\b", b"")], "backslash"),
        ([*files(), ("my-skill/SKILL.md", b"again")], "given more than once"),
        ([*files(), ("my-skill/skill.MD", b"again")], "differs from another in case alone"),
        ([*files(), ("my-skill/a", b""), ("my-skill/a/b", b"")], "a file and a folder at once"),
        ([*files(), ("my-skill/" + "a/" * 20 + "b", b"")], "folders deep"),
        ([("s.zip", b"PK\x03\x04 no archive")], "the zip archive cannot be read"),
    ],
)
async def test_what_is_no_skill_is_refused_and_leaves_nothing(
    api: Api, sent: list[tuple[str, bytes]], message: str
) -> None:
    if sent:
        response = await posted(api, "/v1/skills", *sent)
    else:
        response = await api.http.post("/v1/skills", files=[("display_name", (None, "x"))])
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]["message"]
    assert (await api.get("/v1/skills")).json()["data"] == []
    assert await api.database.fetch("select id from blobs where state <> 'doomed'") == []


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([("file", ("a", b"1"))], "file: Extra inputs are not permitted"),
        ([("files[]", (None, b"1"))], "each part must have a filename"),
        ([("display_name", (None, b"a")), ("display_name", (None, b"b"))], "given more than once"),
    ],
)
async def test_a_form_that_does_not_fit_is_refused(api: Api, parts: list[Any], message: str) -> None:
    response = await api.http.post("/v1/skills", files=parts)
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]["message"]


async def test_a_name_may_be_left_to_the_folder(api: Api) -> None:
    skill = await api.sdk.beta.skills.create(files=[("tidy/SKILL.md", b"---\ndescription: d\n---\n")])
    assert (await api.sdk.beta.skills.versions.retrieve("latest", skill_id=skill.id)).name == "tidy"


async def test_more_than_thirty_megabytes_are_refused_with_413(api: Api) -> None:
    most = LIMITS.total_bytes - len(about())
    bomb = zipped(("my-skill/SKILL.md", about()), ("my-skill/zeros", b"\0" * (most + 1)))
    assert len(bomb) < 100_000
    with pytest.raises(RequestTooLargeError):
        await api.sdk.beta.skills.create(files=[("s.zip", bomb)])
    with pytest.raises(RequestTooLargeError):
        await api.sdk.beta.skills.create(files=files(more={"big": b"\0" * (most + 1)}))
    just = await api.sdk.beta.skills.create(
        files=[("s.zip", zipped(("my-skill/SKILL.md", about()), ("my-skill/zeros", b"\0" * most)))]
    )
    assert just.type == "skill"


async def test_too_many_files_are_refused(api: Api) -> None:
    many = [(f"my-skill/{n}", b"") for n in range(LIMITS.entries)]
    response = await posted(api, "/v1/skills", *files(), *many)
    assert response.status_code == 400, response.text
    response = await posted(api, "/v1/skills", *files(), *many[1:])
    assert response.status_code == 200, response.text


async def test_versions_are_listed_newest_first_and_latest_is_the_newest(api: Api) -> None:
    skill = await made(api)
    ids = [skill.latest_version_id]
    for n in range(3):
        sent = [("my-skill/SKILL.md", about(description=f"No. {n}"))]
        ids.append((await api.sdk.beta.skills.versions.create(skill.id, files=sent)).id)
    page = await api.sdk.beta.skills.versions.list(skill.id, limit=3)
    listed = [version.id async for version in page]
    assert listed == ids[::-1]
    after = await api.sdk.beta.skills.retrieve(skill.id)
    assert after.latest_version_id == ids[-1]
    assert after.updated_at > skill.updated_at
    await api.sdk.beta.skills.versions.delete("latest", skill_id=skill.id)
    latest = await api.sdk.beta.skills.versions.retrieve("latest", skill_id=skill.id)
    assert (latest.id, latest.description) == (ids[-2], "No. 1")


async def test_a_version_keeps_the_name_of_its_skill(api: Api) -> None:
    skill = await made(api)
    await refused(
        api.sdk.beta.skills.versions.create(skill.id, files=files("other")), "'other'", "'my-skill'"
    )
    response = await posted(api, f"/v1/skills/{skill.id}/versions", files()[0], display_name="x")
    assert "display_name: Extra inputs" in response.text
    await refused(
        api.sdk.beta.skills.versions.create("skill_x", files=files()), "skill_x", kind=NotFoundError
    )


async def test_the_only_version_goes_with_its_skill_alone(api: Api) -> None:
    skill = await made(api)
    version_id = skill.latest_version_id
    await refused(api.sdk.beta.skills.versions.delete(version_id, skill_id=skill.id), "only one")
    second = await api.sdk.beta.skills.versions.create(skill.id, files=files())
    gone = await api.sdk.beta.skills.versions.delete(version_id, skill_id=skill.id)
    assert (gone.id, gone.type) == (version_id, "skill_version_deleted")
    gone = await api.sdk.beta.skills.delete(skill.id)
    assert (gone.id, gone.type) == (skill.id, "skill_deleted")
    for request in (
        api.sdk.beta.skills.retrieve(skill.id),
        api.sdk.beta.skills.delete(skill.id),
        api.sdk.beta.skills.versions.retrieve(second.id, skill_id=skill.id),
        api.sdk.beta.skills.versions.download("latest", skill_id=skill.id),
        api.sdk.beta.skills.versions.list(skill.id),
        api.sdk.beta.skills.versions.delete(second.id, skill_id=skill.id),
    ):
        await refused(request, skill.id, kind=NotFoundError)


async def test_a_version_of_another_skill_is_not_found(api: Api) -> None:
    one, other = await made(api), await made(api, "other")
    for request in (
        api.sdk.beta.skills.versions.retrieve(other.latest_version_id, skill_id=one.id),
        api.sdk.beta.skills.versions.delete(other.latest_version_id, skill_id=one.id),
    ):
        await refused(request, other.latest_version_id, "not found", kind=NotFoundError)


async def test_skills_are_listed_newest_first_and_by_source(api: Api) -> None:
    ids = [(await made(api, f"skill-{n}")).id for n in range(5)]
    assert [skill.id async for skill in await api.sdk.beta.skills.list(limit=2)] == ids[::-1]
    assert [skill.id async for skill in await api.sdk.beta.skills.list(source="custom")] == ids[::-1]
    assert (await api.sdk.beta.skills.list(source="anthropic")).data == []
    page = (await api.get("/v1/skills")).json()
    assert set(page) == {"data", "next_page"}
    early = await api.get("/v1/skills?limit=2", headers={"anthropic-beta": "skills-2025-10-02"})
    assert early.json()["has_more"] is True
    for query in ("source=nobody", "limit=1001", "page=zzz"):
        assert (await api.get(f"/v1/skills?{query}")).status_code == 400


async def test_the_bytes_go_with_the_last_version_that_refers_to_them(api: Api) -> None:
    skill = await made(api)
    blobs = api.services.files.blobs
    assert await blobs.sweep() == 0
    await api.database.execute("update blobs set created_at = now() - interval '3 days'")
    assert await blobs.sweep() == 0
    assert (await content_of(api, skill.id)).namelist() == ["my-skill/SKILL.md"]
    await api.sdk.beta.skills.delete(skill.id)
    await blobs.sweep()
    await api.database.execute("update blobs set unreferenced_since = now() - interval '1 day'")
    assert await blobs.sweep() == 1


async def test_in_strict_mode_skills_need_no_beta_header(strict_api: Api) -> None:
    assert (await strict_api.http.get("/v1/skills")).status_code == 200
