"""The data plane without Spark: sources, sinks, fencing tokens and offsets. A plug-in author starts here.

A *source* reads, a *sink* writes; the pipeline connector combines one of each. Both are found by entry point
(``connectgroup.sources``, ``connectgroup.sinks``), and a pydantic model describes their settings.
"""
