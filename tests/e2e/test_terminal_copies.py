"""`corral session fork|export|import|verify|replay`: the real commands against a real server."""

import json
from pathlib import Path

from corral.session.seals import SigningKey
from corral.settings import Chain, Inference, Settings
from corral.testing import ScriptedModel
from tests.corral_server import Corral, SessionUnderTest, running_corral
from tests.e2e.terminal import run
from tests.e2e.test_exports import packed, unpacked


async def worked(corral: Corral) -> SessionUnderTest:
    session = await corral.session(title="the first")
    await session.says("hello", script=[{"text": "one"}])
    await session.idle()
    return session


async def test_a_fork_says_how_to_go_on(corral: Corral) -> None:
    session = await worked(corral)
    first = (await session.events())[0]
    code, out, _ = await run(corral, "session", "fork", session.id)
    assert (code, "corral chat --session sesn_" in out) == (0, True)
    options = ["--at", first.id, "--title", "the second", "--metadata", "a=b", "--json"]
    code, out, _ = await run(corral, "session", "fork", session.id, *options)
    made = json.loads(out)
    assert (made["title"], made["metadata"], made["status"]) == ("the second", {"a": "b"}, "idle")
    assert (await run(corral, "session", "fork", session.id, "--metadata", "ab"))[0] == 2
    code, _, err = await run(corral, "session", "fork", session.id, "--at", "sevt_none")
    assert (code, "is not in the log" in err) == (1, True)


async def test_a_file_goes_out_and_comes_in(corral: Corral, tmp_path: Path) -> None:
    session = await worked(corral)
    path = tmp_path / "session.tar.gz"
    code, out, _ = await run(corral, "session", "export", session.id, "--to", str(path))
    assert (code, str(path) in out) == (0, True)
    assert path.stat().st_mode & 0o077 == 0
    code, _, err = await run(corral, "session", "export", session.id, "--to", str(path))
    assert (code, "is there already" in err) == (1, True)
    assert (await run(corral, "session", "export", session.id, "--to", str(path), "--force"))[0] == 0
    code, out, _ = await run(corral, "session", "import", str(path))
    assert (code, f"is {session.id} as the file has it" in out) == (0, True)
    environment = await corral.environment()
    code, out, _ = await run(corral, "session", "import", str(path), "--environment", environment, "--json")
    made = json.loads(out)
    assert (made["environment_id"], made["title"]) == (environment, "the first")
    assert made["origin"]["session_id"] == session.id
    path.write_bytes(b"no file of ours")
    code, _, err = await run(corral, "session", "import", str(path))
    assert (code, "cannot be read as an exported session" in err) == (1, True)
    assert not list(tmp_path.glob(".*"))


async def test_verify_prints_a_head_and_names_what_was_changed(corral: Corral) -> None:
    session = await worked(corral)
    code, out, _ = await run(corral, "session", "verify", session.id)
    assert (code, out.startswith("Intact: ")) == (0, True)
    head = out.strip().splitlines()[-1].removeprefix("Head: ")
    assert (await run(corral, "session", "verify", session.id, "--head", head))[0] == 0
    change = 'update events set body = \'{"id":"x"}\' where seq = 2 and session_id = %s'
    await corral.database.execute(change, (session.id,))
    code, out, _ = await run(corral, "session", "verify", session.id)
    assert (code, "Not intact at event 2" in out) == (3, True)
    code, out, _ = await run(corral, "session", "verify", session.id, "--json")
    assert (code, json.loads(out)["problem"]["seq"]) == (3, 2)
    code, _, err = await run(corral, "session", "verify", session.id, "--head", "nonsense")
    assert (code, "must be SEQ:LINK" in err) == (1, True)


async def test_a_file_is_verified_without_a_server(
    database_url: str, model: ScriptedModel, tmp_path: Path
) -> None:
    key, other = SigningKey.generate(), SigningKey.generate()
    settings = Settings(
        inference=Inference(provider="gateway", base_url=model.base_url), chain=Chain(signing_key=key.text)
    )
    path = tmp_path / "session.tar.gz"
    async with running_corral(database_url, model, settings=settings) as corral:
        session = await worked(corral)
        _, out, _ = await run(corral, "session", "verify", session.id)
        head = out.strip().splitlines()[-1].removeprefix("Head: ")
        await run(corral, "session", "export", session.id, "--to", str(path))
    verify = ["session", "verify", str(path), "--json"]
    code, out, _ = await run(corral, *verify, "--head", head, "--public-key", key.public.text)
    assert (code, json.loads(out)["intact"]) == (0, True)
    code, out, _ = await run(corral, *verify, "--public-key", other.public.text)
    assert (code, json.loads(out)["problem"]["kind"]) == (3, "signature")
    wrong = f"{head.partition(':')[0]}:{'0' * 64}"
    code, out, _ = await run(corral, *verify, "--head", wrong)
    assert (code, json.loads(out)["problem"]["kind"]) == (3, "head")
    members = unpacked(path.read_bytes())
    members["events/00001.jsonl"] = members["events/00001.jsonl"].replace(b"hello", b"byebye"[:5])
    path.write_bytes(packed(members))
    code, out, _ = await run(corral, *verify)
    assert (code, json.loads(out)["problem"]["kind"]) == (3, "altered")
    code, _, err = await run(corral, "session", "replay", str(path))
    assert (code, "is not what was written" in err) == (1, True)


async def test_replay_says_whether_it_would_act_alike(corral: Corral, tmp_path: Path) -> None:
    session = await worked(corral)
    code, out, _ = await run(corral, "session", "replay", session.id)
    assert (code, out.startswith("Alike: ")) == (0, True)
    path = tmp_path / "session.tar.gz"
    await run(corral, "session", "export", session.id, "--to", str(path))
    code, out, _ = await run(corral, "session", "replay", str(path), "--json")
    report = json.loads(out)
    assert (code, report["difference"], report["requests"]) == (0, None, 1)
    code, _, err = await run(corral, "session", "replay", str(tmp_path / "none.tar.gz"))
    assert (code, "there is no file" in err) == (1, True)


async def test_a_pair_of_keys_fits_together(corral: Corral) -> None:
    code, out, _ = await run(corral, "admin", "chain-key", "create", "--json")
    made = json.loads(out)
    assert (code, made["signing_key"].startswith("corral-chain-key-")) == (0, True)
    assert "CORRAL_CHAIN__SIGNING_KEY=" in (await run(corral, "admin", "chain-key", "create"))[1]
