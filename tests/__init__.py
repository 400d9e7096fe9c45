"""Tests: one folder per package of the library.

One harness for each boundary, not one for all: a single class would need a parameter for each boundary, and a test
would no longer show at which one it stands: a record, a callback, an invariant, a signal.

    Scene          group/builders: one pure step: a request, its records and response; of ``scenes``, too
    World          worker/builders: a coordinator and workers on one loop, with user code that records or misbehaves
    Cluster        simulation: all shipped parts on a faulty log and network, with invariants checked after every event
    MixedCluster   simulation/mixed: the same for ``GroupConsumer``s of both protocols, in every tenth seed
    WorkerGroup    connectgroup.testing: what an embedder tests with, in virtual time or with real processes
    CommandGroup   integration/commands: the commands that a user types
    LocalGroup     integration: Spark under the supervisor

``model`` is a reference model written from the sources, and a model of coordinators that share a log, all of whose
states are searched (``model.ownership``); ``scenes`` has transcripts of the protocol, ``attacks`` a
coordinator and workers under attack, ``suites`` tests of Kafka's clients, ``mutation`` plants faults that tests must
find.

Decisions:

- Virtual time is our own (``connectgroup.testing.virtual_time``), not simloom, which needs Python 3.12, or looptime,
  which has one clock for the whole loop and lets calls in threads take no time or real time. A group under test has
  processes and threads: a worker is paused or killed while the others go on, and time must not pass a computing
  assignor.
- ``simulation`` has a loop and a network of its own. Those of ``connectgroup.testing`` run what users bring: threads,
  executors, sockets, one coordinator. A simulated process has no thread and a clock that drifts, its messages are also
  duplicated and reordered, several coordinators live at once, and a timer takes half the processor time.
- One place decides how much generated input a test tries (``volume``): a user's run, CI with the gates (1,000
  simulator seeds, 200,000 inputs for each decoder), the soak. Coverage of the pure packages is measured by ``make
  mutants``: it would be a tenth of CI's time.
- ``mutation`` has named faults, each with the tests that must find it, and no generated mutants: mutmut and cosmic-ray
  have a runner and a store of results of their own, and also change what only formats messages.
- Random inputs of a group come from the drivers of ``model`` (of any kind; each response is compared, and ``group``
  checks its invariants after each) and from ``simulation`` (real workers and consumers, slow stops, lost messages).
- Processor time is what tests cost. Commands that a test repeats run in its own process (``call_command``); those
  whose process matters start one (``run_command``, ``Program``). Spark starts without Java's second compiler
  (``conftest``), which halves what a session costs. Style, types and import rules are tests (``test_lint``) and run
  beside the others.
"""
