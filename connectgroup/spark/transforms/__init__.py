"""Transforms and predicates that ship with connectgroup, with the names and settings of Kafka Connect's.

Decision: Spark SQL is judged by what Spark's own parser makes of it, before Spark analyzes it (``expressions``). The
analysis computes constant expressions, and so may read files and send requests. Each node of the parsed plan, each
function and each table must be on a list; what a later Spark adds is refused until it has been reviewed. A Spark
Connect server offers no parser without the analysis, and the worker has no Java then: a lexer that refuses what it does
not know for certain finds the names before parentheses, and the server's plan shows other tables.
"""
