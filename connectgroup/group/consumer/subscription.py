"""The topics that a group is subscribed to, and the regular expressions that select them."""

from __future__ import annotations

from ...protocol.records.base import Kind
from ...protocol.records.consumer import (
    CONSUMER,
    ConsumerMemberRecord,
    ConsumerRegexRecord,
    ConsumerTopicsRecord,
    TopicMetadata,
)
from ..kernel.computation import under_way
from ..kernel.effects import Effect, Match, Matched
from .draft import ConsumerDraft


def refresh(draft: ConsumerDraft) -> None:
    """Store the subscribed topics that exist; a change advances the group epoch.

    Regular expressions that no member uses any more are forgotten.
    """
    subscriptions = draft.subscriptions()
    used = {regex for _, regex in subscriptions}
    for regex in sorted(draft.regexes.keys() - used):
        draft.forget(Kind.CONSUMER_REGEX, regex)
    names: set[str] = set()
    for subscription in subscriptions:
        names |= draft.topics_of(subscription)
    topics = tuple(draft.cluster[name] for name in sorted(names) if name in draft.cluster)
    if {topic.topic_name: topic for topic in topics} != draft.topics:
        draft.write(ConsumerTopicsRecord(group_id=draft.group_id, topics=topics))
        draft.bump()


def num_partitions(topics: tuple[TopicMetadata, ...]) -> int:
    """The number of partitions of topics."""
    return sum(topic.num_partitions for topic in topics)


def unresolved(draft: ConsumerDraft) -> list[str]:
    """The regular expressions of members whose topics are not known yet, sorted."""
    regexes = {regex for _, regex in draft.subscriptions()}
    return sorted(regexes - draft.regexes.keys() - {""})


def resolve(draft: ConsumerDraft, matched: Matched) -> None:
    """Store the topics that match a regular expression; a change advances the group epoch."""
    if not any(regex == matched.pattern for _, regex in draft.subscriptions()):
        return
    before = draft.regexes.get(matched.pattern)
    if before != matched.topics:
        # When it is resolved for the first time, its member's join has advanced the epoch, unless the computation of
        # that epoch did not wait for it; and so has ``refresh`` for topics that do not exist any more.
        counts = before is not None or _is_computed(draft)
        if counts and any(name in draft.cluster for name in (before or frozenset()) ^ matched.topics):
            draft.bump()
        draft.write(
            ConsumerRegexRecord(group_id=draft.group_id, regex=matched.pattern, topics=tuple(sorted(matched.topics)))
        )
    refresh(draft)


def _is_computed(draft: ConsumerDraft) -> bool:
    """Whether the target assignment of the group epoch is there, or its computation has begun.

    A computation that is in progress when a member joins does not wait for the topics of the member: its member may
    send Prepare, and it may fail and be started again.
    """
    computation = under_way(draft)
    return draft.epoch == draft.target_epoch or (computation is not None and computation.epoch == draft.epoch)


def matches(draft: ConsumerDraft, regexes: list[str]) -> tuple[Effect, ...]:
    """The effects that resolve regular expressions."""
    return tuple(Match(group_id=draft.group_id, group_type=CONSUMER, pattern=regex) for regex in regexes)


def change_of(before: ConsumerMemberRecord, after: ConsumerMemberRecord) -> bool:
    """Whether a member's subscription has changed."""
    return (before.subscribed_topic_names, before.subscribed_topic_regex) != (
        after.subscribed_topic_names,
        after.subscribed_topic_regex,
    )
