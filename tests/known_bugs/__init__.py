"""Bugs that systems like this one have had, each as a scenario that our parts must survive.

One row a bug: its id, what went wrong in a few words, and the tests that would see it here; a file without a
folder is one of this package. Where our parts cannot have a bug the row says why. ``test_table.py`` holds this
table against the list of ids and against the tests there are.

Group coordinators (KIP-848)

KAFKA-19974: the epoch went up between two revocations, and a unit had two owners at one epoch
    test_group_rules.py::test_a_member_that_has_more_to_stop_keeps_its_epoch
    test_group_rules.py::test_in_no_storm_do_two_members_own_a_unit_at_one_epoch
KAFKA-19431: what a member had given up was assigned to it in the middle of a revocation
    test_group_rules.py::test_what_shall_not_run_any_more_is_given_to_nobody_by_a_target_that_still_names_it
KAFKA-19862: a load beside a compaction missed a release, and failed
    test_replay.py::test_a_load_that_misses_a_release_ends_with_the_right_owner
    test_replay.py::test_however_much_of_a_log_is_compacted_while_it_is_read_the_group_is_the_same
KAFKA-17306: tombstones of what was gone, and records in another order, failed a load
    test_replay.py::test_records_may_come_before_what_they_belong_to
    group/test_fencing.py::test_tombstones_of_the_unknown_are_no_ops
KAFKA-18672: old software misread a record of a newer version
    log/test_sqlite.py::test_a_record_of_newer_software_is_not_skipped
KAFKA-19760: batches filled by an estimate were too large, and all who shared one were told so
    test_coordinator.py::test_a_configuration_that_compresses_well_is_refused_for_its_plain_size_and_nobody_else_is
    coordinator/test_durability.py::test_a_batch_too_large_fails_its_offender_alone
KAFKA-16973: right after a load reads were answered before the writes before them were safe
    coordinator/test_durability.py::test_a_describe_decided_in_the_turn_of_a_write_waits_for_it
KAFKA-18484: an answer that could not be delivered stopped the coordinator
    coordinator/test_durability.py::test_a_fault_in_a_timer_does_not_end_the_loop
    coordinator/test_serving.py::test_a_caller_that_went_away_is_no_trouble
KAFKA-19064: an exception while unloading left callers without an answer
    test_coordinator_life.py::test_a_coordinator_whose_log_fails_to_close_still_answers_everybody
    test_coordinator_life.py::test_a_server_whose_log_fails_to_close_lets_go_of_its_port
KAFKA-19857: cancelling all timers failed whenever there were any
    coordinator/test_serving.py::test_close_answers_everybody_and_cancels_every_timer
MINOR #21376: the map of timers was changed by several threads
    test_coordinator_life.py::test_after_whatever_came_and_went_the_timers_are_those_a_new_coordinator_would_set
MINOR #20739: a batch lingered when it was due
    test_coordinator.py::test_nobody_waits_for_company
KAFKA-19233: a fenced member that came back at epoch 0 was turned down for ever
    test_member.py::test_a_worker_that_begins_anew_is_taken_back_whatever_the_group_thinks_it_is_at
    group/test_fencing.py::test_hb_05_epoch_zero_is_always_a_rejoin
KAFKA-20747: a static member that took another name kept the old one as well
    group/test_static.py::test_kafka_20747_a_name_given_up_is_free_for_another
KAFKA-20434: all members asked for another assignor, and the old target stayed
    test_group_rules.py::test_a_group_whose_members_all_ask_for_another_assignor_is_computed_anew_by_it
    group/test_static.py::test_st_03_coming_back_with_other_assignors_asks_for_a_new_target
KAFKA-20843: two assignors of one name were accepted, and crashed later
    plugins/test_plugins.py::test_two_plug_ins_of_one_name_are_refused_naming_both
KAFKA-20570: malformed metadata escaped as an error nobody expected
    test_metadata.py::test_metadata_of_an_impossible_length_is_refused_and_nobody_else_notices
    test_metadata.py::test_metadata_that_no_assignor_can_read_costs_a_computation_and_no_worker
    wire/test_fuzz.py::test_any_bytes_make_a_message_or_a_wire_error
    coordinator/test_durability.py::test_a_fault_in_the_rules_costs_one_answer_and_no_group
KAFKA-16367: a full request got a partial answer
    test_group_rules.py::test_a_full_request_gets_the_whole_assignment_in_every_state
    group/test_fencing.py::test_hb_04_a_lost_answer_repeats
KAFKA-16930: an assignor failed on a member with nothing
    test_metadata.py::test_members_and_connectors_with_nothing_are_questions_like_any_other
    test_metadata.py::test_a_member_that_lists_no_assignor_and_has_nothing_is_computed_for
KAFKA-18688: an even assignment was reshuffled by the order of iteration
    assignors/test_balanced.py::test_who_has_the_unit_more_does_not_hang_on_the_order_of_members
KAFKA-19163: a group was deleted while something of it was pending
    test_coordinator.py::test_a_group_is_not_deleted_under_somebody_who_is_just_coming_in
    test_coordinator.py::test_a_group_with_work_that_waits_for_a_lost_worker_goes_with_all_its_timers
KAFKA-18813: answers named what the caller may not describe
    no such part yet: there are no permissions, and whoever reaches the port sees everything
KAFKA-20431: describe left out what was being revoked
    group/test_connectors.py::test_kafka_20431_describe_shows_what_is_being_stopped
KAFKA-20273: a change of role kept a target that lagged (groups of an older protocol: no such part)
    test_group_rules.py::test_a_group_that_changes_its_kind_of_assignor_does_not_keep_a_target_that_lags
    test_group_rules.py::test_a_new_coordinator_sees_that_the_target_it_has_read_is_out_of_date
KAFKA-18916: an index that a load did not fill, so that deletions moved nobody
    test_replay.py::test_a_connector_that_goes_is_taken_from_its_workers_also_after_a_load
KAFKA-8896: a timer of a member that was gone crashed the coordinator
    group/test_fencing.py::test_kafka_8896_a_timer_of_a_member_that_is_gone_does_nothing

Members

KAFKA-16198: a part of the target, where names were not known yet, was taken for all of it
    test_member.py::test_a_worker_that_cannot_make_sense_of_what_is_new_keeps_what_it_has
    test_member.py::test_while_nobody_can_say_what_the_new_target_is_everybody_keeps_what_they_have
    member/test_machine.py::test_a_null_assignment_leaves_everything_as_it_is
KAFKA-16375: the reconciliation of a former life was applied in the next one
    worker/test_perform.py::test_unit_that_starts_during_a_loss_is_stopped_too
    worker/test_perform.py::test_what_was_queued_before_a_loss_is_void
KAFKA-16251, KAFKA-16258: a fenced member spoke, and a stale one had not let go
    worker/test_life.py::test_fenced_worker_rejoins_after_everything_has_stopped
KAFKA-16190: a rejoin said only what had changed
    member/test_machine.py::test_a_join_says_everything_and_owns_nothing_rather_than_as_before
KAFKA-16639: no leave was sent while a heartbeat was under way
    member/test_machine.py::test_a_leave_is_said_once_and_is_the_last_word
    coordinator/test_serving.py::test_a_join_overtaken_by_its_senders_leave_makes_no_ghost
KAFKA-16985: no leave was sent by a member that was interrupted
    worker/test_life.py::test_a_cancelled_run_stops_its_tasks_and_leaves
KAFKA-17116: no leave was sent before the member had an id
    worker/test_life.py::test_stop_before_the_first_answer_leaves_no_ghost_behind
KAFKA-20332: records came of what was being revoked
    test_member.py::test_nothing_of_a_unit_runs_any_more_when_it_is_said_to_be_revoked
KAFKA-20428: an assignment that was still queued was applied on the way out
    test_member.py::test_what_was_given_before_the_leave_and_not_taken_up_yet_does_not_outlive_it
    member/test_machine.py::test_a_leave_is_said_once_and_is_the_last_word
KAFKA-20145: the same acknowledgement was sent over and over
    member/test_machine.py::test_an_acknowledgement_is_said_once
    worker/test_life.py::test_an_idle_worker_beats_no_more_than_twice_an_interval
KAFKA-20253: heartbeats at full speed after an error
    worker/test_life.py::test_no_answer_makes_a_worker_spin
KAFKA-19242: what a commit is checked against was read twice
    test_exactly_once.py::test_fences_and_positions_are_read_at_one_moment
KAFKA-19394: what had failed in its start could not be closed
    test_coordinator_life.py::test_a_coordinator_that_cannot_start_holds_nothing_and_can_be_closed_or_started_again
    test_coordinator_life.py::test_a_server_whose_port_is_taken_lets_go_of_its_log
KAFKA-19357: close waited for a coordinator that was not there
    worker/test_life.py::test_stop_returns_while_joining_without_a_coordinator
KAFKA-19813: a backoff with the wrong jitter, and clients that came as a herd
    worker/test_waiting.py::test_those_who_have_failed_equally_often_do_not_come_back_together

Connect's rebalances

KAFKA-10763: a second rebalance before the end of the first skipped its revocations
    worker/test_life.py::test_a_second_rebalance_before_the_first_is_finished_skips_no_revocation
KAFKA-9184: a worker that was cut off kept its tasks when others had them
    test_lost_workers.py::test_a_worker_that_was_cut_off_returns_with_nothing_and_the_group_comes_to_rest
    worker/test_life.py::test_a_worker_that_is_cut_off_stops_before_its_work_is_given_away
    worker/test_misbehaviour.py::test_tasks_are_stopped_when_the_lease_ends_although_a_listener_hangs
KAFKA-9841: a worker that had been cut off came back with what it had
    test_lost_workers.py::test_a_worker_that_was_cut_off_returns_with_nothing_and_the_group_comes_to_rest
KAFKA-9849: a worker that could not read the configurations kept its tasks
    test_connect.py::test_a_worker_whose_coordinator_can_say_nothing_of_the_group_stops_before_its_session_ends
KAFKA-9851: what a worker let go of by itself was never started again
    test_member.py::test_what_a_worker_let_go_of_by_itself_is_started_again_when_it_comes_back_to_it
KAFKA-9848: tasks whose grant was lost on the way were taken for lost
    test_lost_workers.py::test_a_grant_whose_answer_was_lost_is_not_lost_work
KAFKA-12495: joins in the middle of revocations: out of balance, then a storm
    worker/test_built_in_assignors.py::test_workers_that_join_in_a_row_stop_no_task_twice_in_a_row
KAFKA-15693: without a delay lost tasks were assigned to nobody for ever
    group/test_delay.py::test_kafka_15693_without_a_delay_work_is_given_on_at_once
KAFKA-13719: a connector that was restarted doubled its tasks
    test_connect.py::test_a_connector_that_starts_again_does_not_start_its_tasks_again
    test_connect.py::test_paused_and_resumed_again_and_again_each_task_runs_once
    test_connect.py::test_a_list_of_tasks_that_comes_late_is_not_one_of_the_new_configuration
KAFKA-10426, KAFKA-16051: locks held over callbacks, taken in two orders
    test_connect.py::test_callbacks_may_ask_the_group_and_change_it_while_it_waits_for_them
KAFKA-10792, KAFKA-17871, KAFKA-15238: a slow stop, flush or set-up blocked the herder
    test_connect.py::test_no_code_of_a_connector_an_assignor_or_a_listener_runs_in_the_loop
    worker/test_life.py::test_a_blocked_connector_does_not_delay_heartbeats
KAFKA-13586: an exception in a connector crashed the herder
    worker/test_misbehaviour.py::test_a_connector_that_raises_is_failed_with_one_line_and_tried_again
KAFKA-17105: new connectors restarted others
    worker/test_life.py::test_only_what_moves_is_stopped
    group/test_connectors.py::test_ten_tasks_more_on_three_hundred_interrupt_none
KAFKA-15059: zombies could not be fenced while a rebalance was pending
    test_connect.py::test_a_task_can_fence_off_its_former_self_whatever_the_group_is_at
    test_connect.py::test_a_list_of_tasks_is_taken_while_a_rebalance_is_under_way
strimzi#11475: slow changes ran a task twice, and a pod that was restarted idled for the delay
    test_lost_workers.py::test_a_pod_that_is_started_again_under_its_name_does_not_wait_for_the_delay
    test_lost_workers.py::test_slow_changes_while_workers_come_and_go_run_no_task_twice

Offsets, exactly once

KAFKA-15018: of two stores for an offset one had forgotten it
    test_exactly_once_on_spark.py::test_an_old_checkpoint_does_not_bring_an_old_position_back
KAFKA-15800: offsets that could not be stored spoilt the flush of all
    test_exactly_once.py::test_offsets_that_cannot_be_stored_fail_their_own_task_alone
KAFKA-13469, KAFKA-12226: offsets ahead of what was acknowledged, and one record that blocked all
    test_exactly_once.py::test_no_batch_is_let_in_past_one_that_is_not
KAFKA-13472, KAFKA-13927: offsets of what stays overwritten by what goes, or by a retry
    test_exactly_once.py::test_each_slice_keeps_its_own_place_while_others_move_between_tasks
KAFKA-18073: a record that failed for a moment was dropped
    test_exactly_once_on_spark.py::test_rows_of_a_batch_that_failed_for_a_while_are_not_skipped
KAFKA-17507: an end was answered before it was in, and the next transaction built on it
    test_coordinator.py::test_nothing_is_built_on_a_word_that_is_not_safe_yet
Jepsen Bufstream K-txn: delayed and unknown commits hit later transactions
    test_coordinator.py::test_a_write_of_a_former_coordinator_that_comes_late_changes_nothing
    test_exactly_once.py::test_a_commit_whose_outcome_is_not_known_is_looked_up_and_not_sent_blindly
    test_exactly_once.py::test_a_commit_that_was_on_its_way_for_long_hits_nothing_of_the_successor
SPARK-26425: two queries with one checkpoint both went on
    test_exactly_once_on_spark.py::test_of_two_queries_with_one_checkpoint_at_most_one_goes_on
    test_exactly_once_on_spark.py::test_a_second_query_of_the_same_grant_does_not_start_beside_the_first
paimon#9666: a batch that was replayed was committed twice
    test_exactly_once_on_spark.py::test_a_batch_that_is_in_and_that_spark_does_not_know_to_be_in_is_not_written_again
paimon#9667: the sink did not look at which batch it was
    test_exactly_once_on_spark.py::test_a_batch_that_is_in_and_that_spark_does_not_know_to_be_in_is_not_written_again
    spark/test_tasks.py::test_a_batch_that_spark_replays_is_written_once
    spark/test_offsets.py::test_a_batch_that_is_in_is_not_written_again
iceberg-kafka-connect#200: zombies had transactional ids of their own, so nobody fenced them
    test_exactly_once.py::test_whoever_is_given_a_task_fences_off_whoever_had_it_whatever_their_names
"""
