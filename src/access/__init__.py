"""Access: people, and every way to reach the queue but HTTP. These rooms use all folders but web."""
