"""What happens when no bound graph accepts a call: restore, fetch, compile, or refuse."""
