"""The base of this package's stream readers. Spark's Python workers import this module."""

from __future__ import annotations

import os
import sys

from pyspark.sql.datasource import DataSourceStreamReader


class Reader(DataSourceStreamReader):
    """A stream reader whose planning process ends without output when its query has stopped.

    Java closes the connection to that process and then kills it. If the process notices the first before the second,
    PySpark 4.2 tries to send the end of the connection through the connection, and prints a traceback.
    """

    def stop(self) -> None:
        error = sys.exception()
        if not isinstance(error, EOFError) or error.__traceback__ is None:
            return
        called = error.__traceback__.tb_next  # by PySpark's loop, which waits for the next call
        if (
            called is not None
            and called.tb_next is None
            and called.tb_frame.f_globals["__name__"].startswith("pyspark.")
        ):
            os._exit(0)
