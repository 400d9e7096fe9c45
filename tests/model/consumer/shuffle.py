"""A server-side assignor that distributes partitions at random, fails, or is invalid."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from connectgroup.errors import PluginError
from connectgroup.group.consumer.settings import ConsumerServerAssignment
from connectgroup.protocol.messages.consumer import ConsumerPrepareResponse, InstalledConsumer, by_topic
from connectgroup.protocol.units import TopicPartition


@dataclass(kw_only=True)
class Shuffle:
    """An assignor that distributes partitions at random, sometimes fails, and is not always valid."""

    random: Random

    def __call__(self, group: ConsumerPrepareResponse) -> ConsumerServerAssignment:
        draw = self.random.random()
        if draw < 0.1:
            raise PluginError("assignor shuffle: random failure")
        shares: dict[str, set[TopicPartition]] = {member.member_id: set() for member in group.members}
        keep = {
            TopicPartition(topic.topic_id, number): member.member_id
            for member in group.members
            for topic in member.topic_partitions
            for number in topic.partitions
        }
        for topic in group.topics:
            takers = [each.member_id for each in group.members if topic.topic_id in each.subscribed_topic_ids]
            for number in range(topic.num_partitions):
                partition = TopicPartition(topic.topic_id, number)
                stays = keep.get(partition) in takers and self.random.random() < 0.6
                shares[keep[partition] if stays else self.random.choice(takers)].add(partition)
        names = list(shares)
        if 0.1 < draw < 0.2:  # one partition is missing, unknown, assigned twice, or its member is not subscribed
            some = sorted(each for share in shares.values() for each in share)
            match int(draw * 1000) % 4:
                case 0 if some:
                    shares[names[0]] -= {some[0]}
                case 1:
                    shares[names[0]].add(TopicPartition("unknown", 0))
                case 2 if some:
                    shares[names[-1]].add(some[0])
                case _ if some:
                    shares = {name: share - {some[0]} for name, share in shares.items()}
                    shares[self.random.choice(names)].add(some[0])
        versions = {member.member_id: member.assignor.version for member in group.members}
        if draw > 0.95:
            versions[names[-1]] += 2
        listed = names[1:] if draw > 0.9 and not shares[names[0]] else names
        return ConsumerServerAssignment(
            members=tuple(
                InstalledConsumer(
                    member_id=name,
                    topic_partitions=by_topic(shares[name]),
                    version=versions[name],
                    metadata=bytes([len(shares[name])]),
                )
                for name in listed
            )
        )
