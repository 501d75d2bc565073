"""The rooms of jobqueue.py and worker.py: see README.md beside this file."""
