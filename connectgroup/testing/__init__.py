"""Contract classes: the requirements on a plug-in or a back end, as test classes to inherit from."""

from .contracts.assignor import AssignorContract as AssignorContract
