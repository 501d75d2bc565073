"""Tasks: the life of a task from adding to its end. These rooms use base and store."""
