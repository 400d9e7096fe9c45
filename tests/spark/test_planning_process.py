"""The Python process in which Spark plans the batches of a query, without Spark's side of the connection."""

from __future__ import annotations

import subprocess
import sys

import pytest

PLANNING = """
import io, sys
from pyspark.serializers import CPickleSerializer, UTF8Deserializer, write_int, write_with_length
from pyspark.sql.datasource import DataSource
from pyspark.sql.streaming import python_streaming_source_runner as runner
from pyspark.sql.types import StructType
from connectgroup.spark.sources.sliced_reader import Reader

class Numbers(Reader):
    def initialOffset(self):
        if sys.argv[1] == "raises":
            raise EOFError("of the source")
        return {"numbers": 0}
    def latestOffset(self, start, limit):
        return start
    def partitions(self, start, end):
        return []
    def read(self, partition):
        return iter(())

class NumbersSource(DataSource):
    def streamReader(self, schema):
        return Numbers()

class Requests(io.BytesIO):
    ended = False
    def read(self, size=-1):
        data = super().read(size)
        self.ended |= not data
        return data

class Responses(io.BytesIO):
    def write(self, data):
        if requests.ended:
            raise BrokenPipeError(32, "Broken pipe")
        return super().write(data)
    def flush(self):
        self.write(b"")

requests = Requests()
write_with_length(b"%d.%d" % sys.version_info[:2], requests)
write_with_length(b"/tmp", requests)
write_int(0, requests)
write_with_length(CPickleSerializer().dumps(NumbersSource({})), requests)
write_with_length(StructType().json().encode(), requests)
write_int(100, requests)
if sys.argv[1] == "raises":
    write_int(runner.INITIAL_OFFSET_FUNC_ID, requests)
requests.seek(0)
responses = Responses()
try:
    runner.main(requests, responses)
finally:
    print(b"of the source" in responses.getvalue())
"""


@pytest.mark.parametrize(
    ("event", "code", "sent"), [("closes", 0, ""), ("raises", 255, "True\n")], ids=["connection", "source"]
)
def test_end_of_the_connection_ends_the_process_without_output(event: str, code: int, sent: str) -> None:
    """An EOFError of the source itself is an error of the query as before."""
    words = [sys.executable, "-c", PLANNING, event]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, sent, "")
