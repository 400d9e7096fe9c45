"""Questions about a group, answered from its description or its log; nothing is changed.

``explain``: why it rebalanced, and why a task runs where it runs, or does not run. ``plan``: what a change would move,
computed by the rules of the group on a copy of its state. ``replay``: the history of a log, and what another assignor
would have done.
"""
