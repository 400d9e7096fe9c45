"""Differential test of the group rules against a reference model.

The model is ``words``, ``state``, ``connectors``, ``computing`` and ``model``: dictionaries that are scanned as a whole
for every query. It was written from KIP-848, "Connect on the new protocol", the tables of scenarios and the decisions
in ``connectgroup.group``. It imports the shared data types and no rule, so that an error would have to be
made twice. Begin with ``model.Model.heartbeat``.

``replay`` gives every input to both; ``product`` and ``compare`` define what is compared: response, state, timers,
records. ``simulated`` does it for every coordinator of a simulated cluster (``python -m tests.model``), ``driver`` for
sequences of inputs that no correct worker would send.

``ownership`` is another model, of two coordinators that share a log: each of its states is visited.

Where the sources leave a choice (which of several able members computes, what an assignor returns), the product's
choice is an input of the model, which checks that it is allowed.
"""
