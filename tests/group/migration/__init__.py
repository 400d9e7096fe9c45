"""Groups that are converted between the types ``classic`` and ``consumer``."""
