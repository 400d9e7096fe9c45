"""The REST API: Kafka Connect's routes, and those of worker groups under ``/groups``.

Decisions:

- One table of operations (``operations.Operation``, at the end of each route file) makes the routes and the OpenAPI
  document, which serves the property tests: any request gets a documented response, never a 500.
- REST is a process of its own by default (``connectgroup rest``). ``--rest-port`` puts it into a worker, as in Kafka
  Connect, or into the coordinator; there it shares the interpreter with their work, and loads connector classes.
- REST refuses instead of guessing: an address beyond loopback without users and TLS, a foreign ``Host`` or ``Origin``,
  JSON that Python's parser would repair. A status is 503 while the coordinator does not respond; 409 is never returned
  because of a rebalance.
- Kafka Connect's state of a unit between two attempts stays FAILED, with attempt, delay and error in the trace: its
  tools know no other state.
- Two roles, two files of users: readers may send GET and HEAD only. Passwords may contain any character, so a role on
  the same line would be ambiguous.
- Each route names the operation that it needs (``access``), and the handler's admin client is limited to what the user
  may send: the rules of the protocol decide a second time, and filter lists. Both are the same function.
- Paths are matched as they were sent and decoded part by part: an encoded slash is part of a name.
- Log levels belong to a process; with ``scope=cluster`` (KIP-976) the coordinator passes them on. In the scope
  ``worker`` a logger that does not exist is 404: Kafka Connect would create it, without a bound.
- The live page is our own JavaScript (no build step), not htmx and uPlot: the repository contains no third-party
  files, the page may load nothing from another host, and it needs neither: text is inserted as text (Trusted Types are
  required), and its charts are bars and squares. It draws at most 25 ms in a frame.
- The page's data is a flat table of small rows (``page_table``), and a stream sends the rows that have changed. The
  server compares two descriptions: a push from the coordinator would need a request of its own in the protocol. The
  interval grows with the time that a description takes, so pages load a coordinator by a tenth at most.
- The page receives events with ``fetch``, not ``EventSource``, which cannot send a header: user and password would
  have to be in the URL or a cookie. So the files of the page are public.
- Libraries: starlette and uvicorn (BSD-3-Clause), prometheus-client (Apache-2.0). uvicorn runs without its signal
  handlers. prometheus_client reads the sources of metrics without an SDK: the OpenTelemetry exporter would append
  units to names, and keep the totals of tasks that have left the worker.
"""
