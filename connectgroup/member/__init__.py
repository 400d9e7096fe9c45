"""The worker's side of the protocol, as a pure state machine. Start at ``state_machine.Member.on_response``.

Decisions:

- ``owned`` means every unit that may be running: it grows before a start and shrinks after a stop.
- A worker sends epoch -2 only after everything has stopped. The successor of a static member may be granted a unit
  under the very token of its predecessor, because no epoch changes. A worker whose stop failed, or that has lost its
  units, sends -1.
- The lease is counted from the sending of the last heartbeat that got a response, and leaves 20 % of the session for
  the stop, 50 % while a unit is not fenced: without a delay the next owner starts it when the session expires.
- A lease ends only units that no sink fences (PD-10). To stop all tasks cost every pipeline 52 s in an outage of a
  minute, although a successor's claim raises the fence in the transaction that reads the positions. Connectors count
  as fenced (the coordinator rejects a former owner's task lists), but are no reason to stay: a worker without a fenced
  task starts anew under later owner epochs. The price: the fenced tasks of a worker that stays cut off run on if no
  successor claims them, also those of a connector that was stopped or deleted meanwhile.
- Units that stopped with the lease are granted again under the same owner epoch: the worker reports ``owned`` without
  them, as after a lost response. Their stop has returned, so the token has no second bearer. The response under way
  when they stopped is dropped: it would name them as running, without their grants. One whose stop fails or hangs
  stays in ``owned``; after the rebalance timeout the worker gives up its membership (F18).
- A stop that raises is acknowledged only if the sink is fenced (X6). Any other unit is assigned again at the rebalance
  timeout, when the worker has been removed. Kafka Connect abandons such a task, and two owners may then write.
- A large assignment is converted in a thread (``assignment``): 100,000 grants then block the event loop for 165 ms
  instead of 1,436 on two busy cores.
"""
