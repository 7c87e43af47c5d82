"""What the model is told of the memory stores that its session works with (contract section 16.4)."""

from collections.abc import Sequence

from corral.wire.memory_stores import FOLDER, MountedStore

_OPENING = (
    f"Below {FOLDER} there are folders of text files that outlast this session: other sessions have written "
    "them, and later ones will read what you write. Use your file tools on them as on any folder. Elsewhere "
    f"below {FOLDER} nothing can be written."
)
_MAY = {
    "read_write": "You may read and change its files; a changed file is saved when the tool call is over.",
    "read_only": "You may read its files; they cannot be changed.",
}


def memory_note(stores: Sequence[MountedStore]) -> str:
    """The note on a session's stores, in their order; empty where there are none."""
    return "\n\n".join([_OPENING, *(_about(store) for store in stores)]) if stores else ""


def _about(store: MountedStore) -> str:
    lines = [f"{store.mount_path} is the memory store {store.name!r}. {_MAY[store.access]}"]
    if store.description.strip():
        lines.append(f"What it holds: {store.description}")
    if store.instructions and store.instructions.strip():
        lines.append(f"How to use it: {store.instructions}")
    return "\n".join(lines)
