//! The contract of the `Rnic` trait as a suite that every driver runs.
//!
//! A driver supplies a [`Harness`]; [`rnic_contract!`](crate::rnic_contract) makes
//! one `#[test]` of each function here. The RNICs of a test live in one [`World`],
//! which steps them through a real reactor in one thread. Time is the world's: it
//! runs with the clock, and a test may push it ahead, so that a timeout of an
//! hour passes at once.
//!
//! Devices differ: in what they can do ([`Caps`](exs::rnic::Caps)), and in what is
//! around them ([`Harness`]). A test that has no meaning on a device is skipped with
//! its name and the reason, on standard error even if the test runner captures what
//! tests print; where only a detail differs, the test says which and why.

pub mod atomics;
pub mod attended;
pub mod border;
pub mod connections;
pub mod extra;
pub mod fairness;
pub mod files;
pub mod groups;
pub mod handover;
pub mod immediate;
pub mod moving;
pub mod objects;
pub mod reads;
pub mod refusals;
pub mod short;
pub mod sleep;
pub mod teardown;
mod tools;
pub mod transfers;
pub mod windows;
pub mod world;

pub use world::{End, Harness, Pair, World};

use std::time::Duration;

use crate::harness::Watchdog;
pub use crate::skip::{part as skip_part, skip};

/// Runs one test of the suite; a test that lacks something says so.
pub fn run<H: Harness>(name: &'static str, test: fn()) {
    if let Some(why) = H::missing() {
        return skip(&why);
    }
    if let Some(why) = H::known(name) {
        return skip(why);
    }
    // Emulated devices are slow; the waits inside have limits of their own.
    let _dog = Watchdog::with_limit(name, Duration::from_secs(400));
    test();
}

/// One `#[test]` for each function of the suite, over the given [`Harness`].
#[macro_export]
macro_rules! rnic_contract {
    ($harness:ty: $($module:ident { $($test:ident),* $(,)? })*) => {$(
        mod $module {
            use super::*;
            $(#[test] fn $test() {
                $crate::rnic::run::<$harness>(
                    concat!(stringify!($module), "::", stringify!($test)),
                    $crate::rnic::$module::$test::<$harness>,
                )
            })*
        }
    )*};
    ($harness:ty) => {
        $crate::rnic_contract! { $harness:
            objects {
                memory_regions_live_and_die,
                keys_are_random_and_rest,
                misuse_is_refused,
                objects_in_use_stay,
                limits_are_told,
                a_cq_notifies_once_per_arming,
            }
            connections {
                private_data_goes_both_ways,
                ipv6_and_self_connect,
                a_reject_carries_private_data,
                without_a_listener_it_is_refused,
                a_silent_listener_times_out,
                an_abandoned_attempt_blocks_no_later_one,
                a_starved_listener_fails_no_later_attempt,
                a_silent_caller_is_dropped,
                a_stranger_is_dropped,
                requests_vanish_with_their_caller,
                states_and_calls,
                closing_a_listener_drops_requests,
                a_closed_listener_gives_its_port_back,
                two_hundred_at_once,
                reachable_addresses,
                few_reads_at_a_time,
            }
            handover {
                a_request_is_answered_by_another_rnic,
                a_detached_request_outlives_its_listener,
                a_detached_request_vanishes_with_its_caller,
                a_request_is_refused_by_another_rnic,
                a_dropped_request_ends_the_attempt,
                a_detached_request_frees_its_place,
                rnics_share_the_port_of_a_listener,
            }
            moving {
                a_connection_goes_on_in_another_rnic,
                what_was_sent_meanwhile_arrives,
                a_busy_connection_stays,
                a_message_that_waits_keeps_the_connection,
                a_window_goes_along,
                a_window_needs_memory_there,
                a_dropped_connection_breaks,
                a_peer_that_goes_meanwhile_is_noticed,
            }
            transfers {
                sends_of_many_shapes,
                inline_memory_is_free_at_once,
                unsignaled_is_silent,
                writes_land_before_the_send,
                an_empty_read_brings_nothing,
                empty_reads_among_others,
                reads_beyond_ord_queue,
                completions_keep_order,
                sixty_four_mib,
                a_storm_of_tiny_messages,
                both_ways_at_once,
                an_empty_srq_makes_the_peer_wait,
                an_srq_serves_many,
                send_with_invalidate,
                crc_protects_all_of_it,
                queues_are_bounded,
                a_solicited_event_is_told,
            }
            extra {
                they_come_and_go,
                they_fit_their_completion_queue,
            }
            reads {
                reads_bring_data,
                a_read_is_answered_beside_a_send,
            }
            atomics {
                operations_bring_the_old_value,
                many_at_once_among_reads,
                nonsense_is_refused_at_post,
                what_the_peer_does_not_allow_is_refused,
                a_word_outside_of_the_window_is_refused,
                an_end_flushes_them,
            }
            border {
                few_bytes_across_a_page_are_sent,
            }
            short {
                messages_pass_without_completions,
                nothing_is_overtaken,
                completions_come_first,
                a_loan_is_not_written_over,
                set_aside_messages_stay,
                a_look_finds_messages_and_ends,
                large_messages_are_declined,
                requests_that_wait_for_room_leave,
                messages_come_by_receives,
                receives_are_reported_once,
                no_message_comes_before_its_connection,
            }
            fairness {
                busy_connections_starve_no_other,
                a_doorbell_is_no_turn,
            }
            attended {
                a_polled_descriptor_rings_after_work_of_the_leader,
            }
            sleep {
                no_message_waits_for_a_thread_that_polls,
                looks_in_memory_need_no_spins,
            }
            immediate {
                an_immediate_is_delivered,
                an_immediate_without_bytes,
                an_immediate_to_an_srq,
                an_immediate_without_rights,
            }
            windows {
                a_lent_window_serves_and_ends,
                more_windows_than_a_queue_has_room_for,
                a_lent_window_takes_reads,
                a_window_has_bounds,
                a_window_has_rights_and_an_end,
                windows_come_and_go,
                windows_closed_by_the_peer,
            }
            refusals {
                a_write_out_of_bounds,
                a_write_that_wraps,
                a_write_without_rights,
                a_write_to_a_dead_key,
                a_write_to_a_window_of_another_qp,
                a_read_without_rights,
                a_read_out_of_bounds,
                a_key_of_another_domain,
                a_message_longer_than_the_receive,
                a_message_without_a_receive,
                a_foreign_key_cannot_be_invalidated,
                local_memory_is_checked_at_post,
                a_window_closed_in_mid_write,
                a_window_closed_in_mid_read,
                deregistered_memory_is_left_alone,
            }
            teardown {
                orderly_sends_what_was_posted,
                short_lives_end_well,
                orderly_both_at_once,
                orderly_after_the_last_message,
                abort_flushes_both_sides,
                destroy_cuts_the_connection,
                a_dead_qp_takes_nothing,
                flushed_even_if_unsignaled,
                orderly_close_is_bounded_in_time,
                ends_lose_no_receives,
                an_rnic_that_dies_takes_its_connections,
            }
            files {
                a_file_is_written,
                a_file_is_written_under_crc,
                a_file_that_shrinks,
                a_file_that_shrinks_under_crc,
                a_file_that_cannot_be_read,
            }
        }
    };
}
