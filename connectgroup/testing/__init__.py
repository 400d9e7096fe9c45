"""Contract classes: what a plug-in or a back end must do, as test classes to inherit from."""

from .contracts.assignor import AssignorContract as AssignorContract
