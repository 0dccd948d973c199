"""The parts of an entry: as bytes, and as something that runs. A restore loads no compiler."""
