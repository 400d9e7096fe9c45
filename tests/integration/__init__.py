"""Real processes, real Spark, real files: what is left when nothing is pretended."""
