"""How the model is told of its tools: definitions in the Messages API's form.

The list is the same, in the same order, in every request of a session, so that the provider's prompt cache
holds (docs/design/transcript.md).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from corral.brain.memory_note import memory_note
from corral.brain.permission import Agent, custom_tools, enabled_sandbox_tools
from corral.wire.memory_stores import MountedStore


def _tool(name: str, description: str, required: list[str], **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": required}
    return {"name": name, "description": description, "input_schema": schema}


def _text(description: str) -> dict[str, str]:
    return {"type": "string", "description": description}


_DEFINITIONS: Final[Mapping[str, dict[str, Any]]] = {
    tool["name"]: tool
    for tool in (
        _tool(
            "bash",
            "Run a command in a bash shell inside your sandbox. The shell stays: the working directory and "
            "variables carry over between calls. Output and errors come back together; only the last 100 KiB "
            "are kept. Standard input is empty, so commands must not wait for it. A command that outlives "
            "its time limit is killed together with everything that it started.",
            [],
            command=_text("The command line to run."),
            restart={"type": "boolean", "description": "Start a fresh shell instead of running a command."},
            timeout_ms={
                "type": "integer",
                "description": "Time limit in milliseconds; 120000 when absent.",
            },
        ),
        _tool(
            "read",
            "Read a file. Text comes back as it is; PNG, JPEG, GIF and WebP images and PDF documents are "
            "shown to you. Files over 256 KiB must be read in parts by view_range.",
            ["file_path"],
            file_path=_text("Path of the file; relative paths start at the working directory."),
            view_range={
                "type": "array",
                "items": {"type": "integer"},
                "minItems": 2,
                "maxItems": 2,
                "description": "First and last line to read, counted from 1; -1 as the last is the end.",
            },
        ),
        _tool(
            "write",
            "Write a file, creating its folders and replacing what was there.",
            ["file_path", "content"],
            file_path=_text("Path of the file."),
            content=_text("The whole new content."),
        ),
        _tool(
            "edit",
            "Replace text in a file. The old text must match exactly, white space included, and must occur "
            "once unless replace_all is set.",
            ["file_path", "old_string", "new_string"],
            file_path=_text("Path of the file."),
            old_string=_text("The exact text to replace."),
            new_string=_text("The text to put in its place."),
            replace_all={"type": "boolean", "description": "Replace every occurrence."},
        ),
        _tool(
            "glob",
            "List files whose path matches a pattern, newest first, at most 200. ** matches folders at any "
            "depth.",
            ["pattern"],
            pattern=_text("A relative pattern such as **/*.py."),
            path=_text("The folder to search in; the working directory when absent."),
        ),
        _tool(
            "grep",
            "Search file contents for a regular expression. Each hit is a line of file:line:text.",
            ["pattern"],
            pattern=_text("The regular expression."),
            path=_text("The file or folder to search; the working directory when absent."),
        ),
    )
}


_LISTED_UPLOADS: Final = 50


def tool_definitions(agent: Agent) -> list[dict[str, Any]]:
    """All tools of the agent: the enabled built-in ones, then the custom ones by name."""
    built_in = [_DEFINITIONS[name] for name in enabled_sandbox_tools(agent)]
    custom = [
        {"name": tool["name"], "description": tool["description"], "input_schema": tool["input_schema"]}
        for tool in custom_tools(agent)
    ]
    return [*built_in, *sorted(custom, key=lambda tool: tool["name"])]


def system_prompt(
    agent: Agent,
    *,
    self_hosted: bool,
    uploads: Sequence[str] = (),
    memory: Sequence[MountedStore] = (),
    skills: str = "",
    others: str = "",
) -> list[dict[str, Any]]:
    """The system prompt's blocks: the agent's own, where its tools work, its files, memory stores and skills.

    `uploads` are the paths of the files that the session began with. Those that are added later are not told
    of, so that the prompt stays what it was. `skills` is the note on the agent's skills, if it has any,
    `others` that on agents that it works with.
    """
    texts: list[str] = []
    if agent["system"] and agent["system"].strip():
        texts.append(agent["system"])
    if enabled_sandbox_tools(agent) and not self_hosted:
        texts.append(
            "Your tools run in a sandbox of your own, whose working directory is /workspace. It has no "
            "network unless you find otherwise. Files there last as long as this session. Put files that are "
            "meant for the user into /mnt/session/outputs: they are handed over from there."
        )
        if uploads:
            texts.append(_upload_list(uploads))
    if enabled_sandbox_tools(agent) and memory:
        texts.append(memory_note(memory))
    if skills:
        texts.append(skills)
    if others:
        texts.append(others)
    return [{"type": "text", "text": text} for text in texts]


def _upload_list(uploads: Sequence[str]) -> str:
    lines = ["The user has given you these files, which are read-only:", *uploads[:_LISTED_UPLOADS]]
    if len(uploads) > _LISTED_UPLOADS:
        lines.append(f"and {len(uploads) - _LISTED_UPLOADS} more below /mnt/session/uploads")
    return "\n".join(lines)
