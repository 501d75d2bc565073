"""Base: limits, errors, text, values. These rooms use no other folder."""
