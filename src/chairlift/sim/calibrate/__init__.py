"""Cost models from measurements: a sweep over an engine, or what a journal recorded, fitted and checked."""
