"""Files and batches: many requests at once, answered whenever there is room, and kept on disk."""
