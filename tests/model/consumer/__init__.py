"""Differential test of the rules of consumer groups (KIP-848) against a reference model.

The model is ``words``, ``computing``, ``model`` and ``classic``, on top of ``tests.model.computing``: the choice of the
member that computes, Prepare and failed computations are the same for all group types. It was written from KIP-848 and
its case studies, the tables of scenarios CA-*, RE-*, HB-*, OC-*, ST-*, TO-*, RV-*, and the decisions in
``connectgroup.group.consumer``. It imports the shared data types and no rule.

``replay`` gives every input to both; ``product`` and ``compare`` define what is compared. ``driver`` makes sequences of
inputs that are mostly those of correct consumers (``python -m tests.model --type consumer``). The assignor of the
product is random; the model takes its result as given, and checks it.

Groups with members of the classic protocol, and conversions both ways, are in ``classic``, from the tables MG-*;
``mixed_replay`` and ``mixed`` are their replay and driver (``--type mixed``). While a group is a classic one, it is
compared with the model of ``tests.model.classic``.
"""
