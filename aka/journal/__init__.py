"""What happened in a run, kept on disk so that a crash loses nothing that was acknowledged."""

from aka.journal.blobs import BlobStore
from aka.journal.files import write_atomically
from aka.journal.jsonl import JsonlJournal
from aka.journal.lock import is_held
from aka.journal.replay import Best, Dropout, Retrieval, RunState, fold
from aka.journal.runs import find_run, new_run_id, run_folders, runs_root

__all__ = [
    "Best",
    "BlobStore",
    "Dropout",
    "JsonlJournal",
    "Retrieval",
    "RunState",
    "find_run",
    "fold",
    "is_held",
    "new_run_id",
    "run_folders",
    "runs_root",
    "write_atomically",
]
