"""What the cache asks of the Python interpreter around it: forks, garbage, signals, time."""
