"""The simulator: the server's scheduler on a virtual clock, with a cost model in the place of a device."""
