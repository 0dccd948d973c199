"""The remote tier: entries on an engine of OpenDAL, for hosts that share no folder."""
