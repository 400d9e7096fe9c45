"""Committed offsets of a group; the rules are those of all group types with members that read topics.

Decisions:

- An offset belongs to a topic id (``OffsetRecord.topic_id``, tagged), if the coordinator knows the topics
  (``--topics-from``, the proxy). A change of the topics is an input (``TopicsChanged``) of each group that has offsets
  of other topics than those of the cluster; so is the load of a group. Records without an id, of an earlier version,
  get that of the topic which has the name then.
- An OffsetFetch waits for a read of the topics, a commit only if it names a partition that is not known
  (``ConsumerGroups.look_again``): otherwise a topic that was deleted and created again a moment ago would keep its
  offsets. Requests share a read; after 2 s without a response of the broker, the last read counts.
- What Kafka's broker stores is stored: offsets below 0 and any leader epoch. Clients reject or ignore them.
"""
