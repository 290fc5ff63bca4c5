"""Building blocks the peers share, each once."""
