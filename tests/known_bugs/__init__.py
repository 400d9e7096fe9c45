"""Bugs of other systems of this kind, each as a scenario that this project must pass.

One row per bug: its id, a short description, and the tests that would detect it here; a file without a folder is in
this package. If a bug is impossible here, the row gives the reason. ``test_table.py`` compares this table with the
list of ids and with the existing tests.

Group coordinators (KIP-848)

KAFKA-19974: the epoch advanced between two revocations, and a unit had two owners at one epoch
    test_group_rules.py::test_member_with_a_further_revocation_keeps_its_epoch
    test_group_rules.py::test_no_unit_has_two_owners_at_one_epoch_in_random_runs
KAFKA-19431: a partition that a member had unsubscribed from was assigned to it during a revocation
    test_group_rules.py::test_unit_that_may_not_run_is_not_granted_by_a_stale_target
KAFKA-19862: a load during a compaction missed a release, and failed
    test_replay.py::test_load_that_misses_a_release_ends_with_the_right_owner
    test_replay.py::test_group_is_the_same_however_much_of_its_log_is_compacted_during_the_load
KAFKA-17306: tombstones of unknown keys, and reordered records, failed a load
    test_replay.py::test_records_may_precede_those_they_refer_to
    group/test_fencing.py::test_tombstones_of_unknown_keys_have_no_effect
KAFKA-18672: old software misread a record of a newer version
    log/test_sqlite_damage.py::test_record_of_a_newer_version_is_not_skipped
KAFKA-19760: batches filled by an estimated size were too large, and all their requests failed
    test_coordinator.py::test_configuration_is_rejected_for_its_uncompressed_size
    coordinator/test_durability.py::test_batch_that_is_too_large_fails_only_its_command
KAFKA-16973: after a load, reads were answered before the writes before them were durable
    coordinator/test_durability.py::test_describe_waits_for_the_write_of_its_turn
KAFKA-18484: a response that could not be delivered stopped the coordinator
    coordinator/test_durability.py::test_exception_in_a_timer_does_not_end_the_loop
    coordinator/test_serving.py::test_response_to_a_closed_connection_is_dropped
KAFKA-19064: an exception while unloading left callers without a response
    test_coordinator_life.py::test_coordinator_whose_log_fails_to_close_answers_every_request
    test_coordinator_life.py::test_server_whose_log_fails_to_close_releases_its_port
KAFKA-19857: cancelling all timers failed if there were any
    coordinator/test_serving.py::test_close_answers_every_request_and_cancels_every_timer
MINOR #21376: the map of timers was changed by several threads
    test_coordinator_life.py::test_timers_are_those_that_a_new_coordinator_would_set
MINOR #20739: a batch lingered when it was due
    test_coordinator.py::test_request_does_not_wait_for_further_requests_of_a_batch
KAFKA-19233: a fenced member that rejoined at epoch 0 was rejected for ever
    test_member.py::test_rejoin_at_epoch_0_is_accepted_at_any_member_epoch
    group/test_fencing.py::test_hb_05_epoch_zero_is_always_a_rejoin
KAFKA-20747: a static member that took another instance id kept the old one as well
    group/test_static.py::test_kafka_20747_former_instance_id_is_free
KAFKA-20434: all members requested another assignor, and the old target stayed
    test_group_rules.py::test_assignor_change_by_all_members_leads_to_a_new_target
    group/test_static.py::test_st_03_return_with_other_assignors_requests_a_new_target
KAFKA-20843: two assignors of one name were accepted, and crashed later
    plugins/test_plugins.py::test_two_plug_ins_of_one_name_are_rejected_naming_both
KAFKA-20570: malformed metadata escaped as an unexpected error
    test_metadata.py::test_metadata_of_invalid_length_is_rejected_for_its_member_only
    test_metadata.py::test_metadata_that_no_assignor_can_read_fails_only_a_computation
    wire/test_fuzz.py::test_any_bytes_make_a_message_or_a_wire_error
    coordinator/test_durability.py::test_exception_in_the_rules_fails_one_command_only
KAFKA-16367: a full request got a partial response
    test_group_rules.py::test_full_request_gets_the_whole_assignment_in_every_state
    group/test_fencing.py::test_hb_04_lost_response_is_repeated
KAFKA-16930: an assignor failed on a member without subscriptions
    test_metadata.py::test_members_and_connectors_without_units_are_valid_input
    test_metadata.py::test_member_without_assignors_and_units_is_assigned
KAFKA-18688: a balanced assignment was changed by the iteration order
    assignors/test_balanced.py::test_result_does_not_depend_on_the_order_of_members
KAFKA-19163: a group was deleted while part of it was pending
    test_coordinator.py::test_group_is_not_deleted_while_a_member_joins
    test_coordinator.py::test_deleted_group_with_delayed_units_leaves_no_timer
KAFKA-18813: responses named topics that the caller may not describe
    transport/test_group_access.py::test_other_users_see_only_their_groups
KAFKA-20431: describe omitted pending revocations
    group/test_connectors.py::test_kafka_20431_describe_shows_pending_revocations
KAFKA-20273: a change of role kept a stale target (groups of an older protocol: no such part)
    test_group_rules.py::test_lagging_target_is_not_kept_when_the_kind_of_assignor_changes
    test_group_rules.py::test_new_coordinator_detects_an_outdated_target
KAFKA-18916: an index that a load did not fill, so that deletions revoked nothing
    test_replay.py::test_deleted_connector_is_revoked_from_its_workers_after_a_load
KAFKA-8896: a timer of a removed member crashed the coordinator
    group/test_fencing.py::test_kafka_8896_timer_of_a_removed_member_does_nothing

Members

KAFKA-16198: a part of the target, with names that were not known yet, was taken for all of it
    test_member.py::test_worker_that_cannot_read_a_new_assignment_keeps_its_units
    test_member.py::test_members_keep_their_units_while_no_target_can_be_computed
    member/test_machine.py::test_null_assignment_changes_nothing
KAFKA-16375: the reconciliation before a fencing was applied after it
    worker/test_actions.py::test_unit_that_starts_during_a_loss_is_stopped_too
    worker/test_actions.py::test_actions_queued_before_a_loss_are_dropped
KAFKA-16251, KAFKA-16258: a fenced member sent heartbeats, and a stale one had not released its partitions
    worker/test_unexpected_responses.py::test_fenced_worker_rejoins_after_everything_has_stopped
KAFKA-16190: a rejoin sent only changed fields
    member/test_machine.py::test_join_is_a_full_request_with_no_owned_units
KAFKA-16639: no leave was sent while a heartbeat was in flight
    member/test_leave.py::test_leave_is_sent_once_and_last
    coordinator/test_serving.py::test_join_overtaken_by_the_leave_of_its_sender_creates_no_member
KAFKA-16985: no leave was sent by an interrupted member
    worker/test_life.py::test_cancelled_run_stops_its_tasks_and_leaves
KAFKA-17116: no leave was sent before the member had an id
    worker/test_life.py::test_stop_before_the_first_response_leaves_no_member_behind
KAFKA-20332: records were returned for partitions that were being revoked
    test_member.py::test_revoked_unit_has_stopped_when_it_is_acknowledged
KAFKA-20428: a queued assignment was applied after a leave
    test_member.py::test_queued_assignment_is_not_applied_after_a_leave
    member/test_leave.py::test_leave_is_sent_once_and_last
KAFKA-20145: the same acknowledgement was sent repeatedly
    member/test_machine.py::test_acknowledgement_is_sent_once
    worker/test_life.py::test_idle_worker_sends_at_most_two_heartbeats_an_interval
KAFKA-20253: heartbeats without back-off after an error
    worker/test_unexpected_responses.py::test_worker_backs_off_on_repeated_errors
KAFKA-19242: the state that a commit is checked against was read twice
    test_exactly_once.py::test_fences_and_positions_are_read_in_one_transaction
KAFKA-19394: a component that failed to start could not be closed
    test_coordinator_life.py::test_coordinator_that_fails_to_start_holds_no_resource
    test_coordinator_life.py::test_server_whose_port_is_in_use_closes_its_log
KAFKA-19357: close waited for an unavailable coordinator
    worker/test_life.py::test_stop_returns_while_joining_without_a_coordinator
KAFKA-19813: a back-off with the wrong jitter, and a thundering herd of clients
    worker/test_waiting.py::test_equal_numbers_of_failures_have_jittered_back_offs

Connect's rebalances

KAFKA-10763: a second rebalance before the end of the first skipped its revocations
    worker/test_life.py::test_second_rebalance_before_the_end_of_the_first_skips_no_revocation
KAFKA-9184: a worker that was cut off kept its tasks after they were reassigned
    test_lost_workers.py::test_worker_that_was_cut_off_rejoins_without_units
    worker/test_partitioned.py::test_partitioned_worker_stops_before_its_units_are_assigned_again
    worker/test_misbehaving_listeners.py::test_tasks_are_stopped_when_the_lease_ends_although_a_listener_hangs
KAFKA-9841: a worker that was cut off rejoined with its old assignment
    test_lost_workers.py::test_worker_that_was_cut_off_rejoins_without_units
KAFKA-9849: a worker that could not read the configurations kept its tasks
    test_connect.py::test_worker_without_responses_stops_before_its_session_ends
KAFKA-9851: tasks that a worker revoked by itself were never started again
    test_member.py::test_unit_revoked_by_the_worker_itself_is_started_again_when_granted
KAFKA-9848: tasks whose grant was lost on the network were taken for lost
    test_lost_workers.py::test_grant_whose_response_was_lost_is_not_delayed
KAFKA-12495: joins during revocations: an unbalanced assignment, then repeated rebalances
    worker/test_built_in_assignors.py::test_successive_joins_stop_no_task_twice_in_a_row
KAFKA-15693: without a delay lost tasks were never assigned
    group/test_delay.py::test_kafka_15693_units_are_assigned_at_once_without_a_delay
KAFKA-13719: a restarted connector doubled its tasks
    test_connect.py::test_restarted_connector_does_not_restart_its_tasks
    test_connect.py::test_each_task_runs_once_through_repeated_pause_and_resume
    test_connect.py::test_late_task_list_is_not_applied_to_a_new_configuration
KAFKA-10426, KAFKA-16051: locks held over callbacks, acquired in two orders
    test_connect.py::test_callbacks_may_call_the_coordinator_while_it_waits_for_them
KAFKA-10792, KAFKA-17871, KAFKA-15238: a slow stop, flush or set-up blocked the herder
    test_connect.py::test_plug_in_code_never_runs_in_the_event_loop
    worker/test_life.py::test_blocked_connector_does_not_delay_heartbeats
KAFKA-13586: an exception in a connector crashed the herder
    worker/test_misbehaving_connectors.py::test_connector_that_raises_fails_with_one_line_and_is_retried
KAFKA-17105: new connectors restarted others
    worker/test_life.py::test_only_units_that_move_are_stopped
    group/test_connectors.py::test_ten_more_tasks_interrupt_none_of_three_hundred
KAFKA-15059: zombies could not be fenced while a rebalance was pending
    test_connect.py::test_task_can_fence_its_predecessor_during_a_rebalance
    test_connect.py::test_task_list_is_accepted_during_a_rebalance
strimzi#11475: slow changes ran a task twice, and a restarted pod idled for the delay
    test_lost_workers.py::test_restarted_pod_with_an_instance_id_does_not_wait_for_the_delay
    test_lost_workers.py::test_slow_changes_during_rebalances_run_no_task_twice

Offsets, exactly once

KAFKA-15018: one of two stores of an offset had lost it
    test_exactly_once_on_spark.py::test_old_checkpoint_does_not_restore_an_old_position
KAFKA-15800: offsets that could not be stored failed the flush of all tasks
    test_exactly_once.py::test_offsets_that_cannot_be_stored_fail_their_own_task_only
KAFKA-13469, KAFKA-12226: offsets ahead of acknowledged records, and one record that blocked all commits
    test_exactly_once.py::test_batch_is_not_committed_past_one_that_failed
KAFKA-13472, KAFKA-13927: offsets of kept partitions were overwritten by revoked ones, or by a retry
    test_exactly_once.py::test_each_slice_keeps_its_position_while_others_move
KAFKA-18073: a record that failed temporarily was dropped
    test_exactly_once_on_spark.py::test_rows_of_a_batch_that_failed_temporarily_are_not_skipped
KAFKA-17507: the end of a transaction was acknowledged early, and the next one was based on it
    test_coordinator.py::test_no_decision_is_based_on_a_write_that_is_not_durable
Jepsen Bufstream K-txn: delayed and unknown commits affected later transactions
    test_coordinator.py::test_late_write_of_a_former_coordinator_changes_nothing
    test_exactly_once.py::test_commit_of_unknown_outcome_is_looked_up_before_a_retry
    test_exactly_once.py::test_delayed_commit_does_not_affect_the_successor
SPARK-26425: two queries with one checkpoint both continued
    test_exactly_once_on_spark.py::test_at_most_one_of_two_queries_with_one_checkpoint_continues
    test_exactly_once_on_spark.py::test_second_query_of_the_same_grant_does_not_start
paimon#9666: a replayed batch was committed twice
    test_exactly_once_on_spark.py::test_batch_committed_without_spark_commit_is_not_written_again
paimon#9667: the sink did not check the batch id
    test_exactly_once_on_spark.py::test_batch_committed_without_spark_commit_is_not_written_again
    spark/test_tasks.py::test_batch_replayed_by_spark_is_written_once
    spark/test_offsets.py::test_committed_batch_is_not_written_again
iceberg-kafka-connect#200: random transactional ids, so the former owner was not fenced
    test_exactly_once.py::test_new_owner_fences_the_former_owner_whatever_their_names
"""
