"""PURE: the rules of classic groups, whose members compute the assignment themselves (JoinGroup and SyncGroup)."""
