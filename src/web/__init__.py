"""Web: HTTP and the command line. These rooms use all other folders of jobqueue.py."""
