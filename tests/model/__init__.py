"""The group protocol said a second time, and the product replayed against it.

The model is ``words``, ``paper``, ``connectors``, ``computing`` and ``model``: dictionaries, looked at as a whole for
every question. It was written from KIP-848, "Connect on the new protocol", the tables of scenarios and the decisions
in connectgroup/ARCHITECTURE.md. It imports the shared data types and no rule, so that a mistake would have to be
made twice. Begin with ``model.Model.heartbeat``.

``replay`` puts every input to both; ``pictures`` and ``compare`` say what is compared: answer, state, timers, records.
``beside`` does it for every coordinator of a simulated cluster (``python -m tests.model``), ``driver`` for sequences of
inputs that no honest worker would send.

Where the sources leave a choice (which of several able members computes, what an assignor answers), the product's
choice is an input of the model, which says whether it is among the allowed.
"""
