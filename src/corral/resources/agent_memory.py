"""The family of memory stores in one piece: what the API is given."""

from corral.resources.memories import Memories
from corral.resources.memory_mounts import MemoryMounts
from corral.resources.memory_stores import MemoryStores
from corral.resources.memory_versions import MemoryVersions
from corral.store.database import Database


class AgentMemory:
    """The stores in a database, what is in them, its history, and which sessions have which."""

    def __init__(self, database: Database) -> None:
        self.stores = MemoryStores(database)
        self.memories = Memories(database)
        self.versions = MemoryVersions(database)
        self.mounts = MemoryMounts(database)
