"""Worker: the rooms of worker.py. They use the built jobqueue.py."""
