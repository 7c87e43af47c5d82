"""Two further servers of agents, with APIs of their own: measured only by how soon they ask the model."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from psycopg.conninfo import conninfo_to_dict

from benchmarks.client import Client
from benchmarks.managed_agents import Sender
from benchmarks.processes import free_port, server
from benchmarks.rivals import installed

OPENHANDS: Final = "OpenHands agent-server 1.58"
AEGRA: Final = "Aegra 0.11"


@asynccontextmanager
async def openhands(provider: Client, folder: Path) -> AsyncGenerator[Sender]:
    """OpenHands' agent-server with an agent without tools; it keeps its conversations in files.

    Raises `NotInstalled` or `NotStarted`.
    """
    programs = await asyncio.to_thread(installed, "openhands", "openhands-agent-server==1.58.0")
    port, home = free_port(), folder / "openhands"
    (home / "workspace").mkdir(parents=True)
    environment = {
        "HOME": str(home),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OH_CONVERSATIONS_PATH": str(home / "conversations"),
        "OH_ENABLE_VSCODE": "false",
        "OH_PRELOAD_TOOLS": "false",
    }
    command = [str(programs / "agent-server"), "--port", str(port)]
    async with server(
        command, folder / "openhands.log", environment=environment, folder=home, port=port
    ) as running:
        async with Client(running.base_url) as client:
            llm = {
                "model": "openai/gpt-benchmark", "base_url": f"{provider.base_url}/v1", "api_key": "none",
                "usage_id": "agent",
            }  # fmt: skip
            made = await client.post(
                "/api/conversations",
                {
                    "agent": {"kind": "Agent", "llm": llm, "tools": []},
                    "workspace": {"kind": "LocalWorkspace", "working_dir": str(home / "workspace")},
                },
            )

            async def send(text: str) -> None:
                said = {"role": "user", "content": [{"type": "text", "text": text}], "run": True}
                await client.post(f"/api/conversations/{made['id']}/events", said)
                # Only then is it asked whether it is done, so that nothing but the message keeps it busy.
                await provider.get(f"/arrival/{text.removeprefix('mark:')}")
                await _finished(client, made["id"])

            yield send


async def _finished(client: Client, conversation: str) -> None:
    """Its API for this is a question; its stream is a WebSocket."""
    while (await client.get(f"/api/conversations/{conversation}"))["execution_status"] == "running":  # noqa: ASYNC110
        await asyncio.sleep(0.05)


_GRAPH: Final = """
import os

import httpx
from langgraph.graph import END, START, MessagesState, StateGraph

_client = httpx.AsyncClient(base_url=os.environ["PROVIDER_URL"], trust_env=False)


async def answer(state):
    roles = {"ai": "assistant", "human": "user"}
    said = [{"role": roles[message.type], "content": message.content} for message in state["messages"]]
    reply = await _client.post("/v1/chat/completions", json={"model": "benchmark", "messages": said})
    return {"messages": [reply.json()["choices"][0]["message"]]}


graph = StateGraph(MessagesState).add_node("answer", answer)
graph = graph.add_edge(START, "answer").add_edge("answer", END).compile()
"""
"""The least that an agent can be: one call of the provider."""


@asynccontextmanager
async def aegra(database_url: str, provider: Client, folder: Path) -> AsyncGenerator[Sender]:
    """Aegra on an empty database, in one process without Redis and without authentication.

    Raises `NotInstalled` or `NotStarted`.
    """
    programs = await asyncio.to_thread(installed, "aegra", "aegra-api==0.11.0")
    port, home, told = free_port(), folder / "aegra", conninfo_to_dict(database_url)
    home.mkdir()
    (home / "graph.py").write_text(_GRAPH)
    (home / "aegra.json").write_text(json.dumps({"graphs": {"agent": "./graph.py:graph"}}))
    environment = {
        "AEGRA_CONFIG": "aegra.json",
        "AUTH_TYPE": "noop",
        "DATABASE_URL": f"postgresql://{told['user']}@/{told['dbname']}?host={told['host']}",
        "LOG_LEVEL": "WARNING",
        "PROVIDER_URL": provider.base_url,
    }
    command = [str(programs / "uvicorn"), "aegra_api.main:app", "--port", str(port), "--no-access-log"]
    async with server(
        command, folder / "aegra.log", environment=environment, folder=home, port=port
    ) as running:
        async with Client(running.base_url) as client:
            thread = (await client.post("/threads", {}))["thread_id"]

            async def send(text: str) -> None:
                said = {"messages": [{"role": "user", "content": text}]}
                body = {"assistant_id": "agent", "input": said}
                await client.post(f"/threads/{thread}/runs/wait", body)

            yield send
