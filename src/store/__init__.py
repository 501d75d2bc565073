"""Store: the schema, the databases, the data folder, settings. These rooms use base."""
