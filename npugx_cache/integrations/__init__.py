"""What the compiler interfaces of serving engines ask for, answered from the cache."""
