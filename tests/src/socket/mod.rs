//! The contract of sockets: what holds on every transport.
//!
//! Each function tests one promise and takes an [`Env`].
//! [`socket_contract!`](crate::socket_contract) makes tests of them all for one
//! environment. Where a promise has no meaning on a transport, or a device is known not
//! to keep it, the test is skipped with its name and the reason.

pub mod atomics;
pub mod batch;
pub mod cancel;
pub mod close;
pub mod connect;
pub mod counters;
pub mod file;
pub mod memory;
pub mod onesided;
pub mod packet;
pub mod queue;
pub mod stream;

use crate::harness::{Env, Watchdog};
use crate::skip::skip;

/// Runs one test in an environment, if there is one.
pub fn run<E: Into<Result<Env, String>>>(name: &'static str, env: E, test: fn(&Env)) {
    match env.into() {
        Err(why) => skip(&why),
        Ok(env) => {
            if let Some(why) = env.known(name) {
                return skip(why);
            }
            let _dog = Watchdog::with_limit(name, env.patience());
            test(&env);
        }
    }
}

/// Tests of the whole contract; `$env` is a function that makes the environment (or says
/// in an error why there is none).
#[macro_export]
macro_rules! socket_contract {
    ($env:path) => {
        $crate::socket_tests! { $env;
            atomics: operations_bring_the_old_value, what_cannot_be_done_is_refused_at_home,
                a_device_without_them_refuses, many_in_flight, several_threads_lose_no_addition,
                a_spin_lock_excludes, revoked, forged_descriptors_end_the_connection,
                cancelled_operations_tell_the_truth, the_peer_goes_away,
                words_of_several_connections;
            batch: order_and_integrity, receives_cut_a_batch_anywhere, messages_stay_messages,
                the_depth_cuts_a_batch, a_refused_batch_is_as_it_was;
            cancel: a_receive_by_token, at_any_moment, all_of_a_socket, operations_that_move_no_data,
                sends_that_wait, time_limits, time_limits_set_late,
                no_limit_ends_what_there_is_room_for, the_end_of_the_connection_after_it;
            close: shutdown_of_one_side, shutdown_of_reading, every_receive_sees_the_end,
                close_delivers_everything, close_tells_the_end_without_the_shutdown, a_drop_delivers_everything, close_delivers_messages,
                empty_messages_outlive_the_connection,
                close_cancels_receives, close_is_bounded_by_linger, abort,
                the_backlog_is_reset_with_its_listener, connections_without_an_event_are_reset,
                abort_in_mid_transfer,
                sending_to_a_closed_peer_fails, close_wakes_a_blocked_receive;
            connect: addresses_are_those_of_the_connection, the_server_may_speak_first, a_client_may_be_bound,
                where_nothing_listens_is_refused, the_first_address_that_answers,
                a_host_is_text_or_addresses, the_error_of_a_host_names_each_address,
                a_closed_listener_refuses,
                a_dropped_listener_refuses, an_address_in_use_is_refused, kinds_must_match,
                a_server_of_another_protocol_is_an_error, a_silent_server_times_out,
                strangers_do_not_disturb, a_thread_connects_to_itself, poll_reports_connections,
                an_aborted_connect_ends,
                calls_out_of_turn_are_refused, five_hundred_at_once;
            counters: of_a_socket, a_receive_ahead_is_direct, of_one_sided_operations,
                of_the_process;
            file: parts_of_files, before_a_receive_is_posted, among_other_sends, as_a_message,
                nothing_of_a_file, a_file_that_is_too_short;
            memory: mappings_of_all_kinds, the_owner_lives_as_long_as_its_memory_is_used;
            onesided: write_and_read, blocking_twins, few_bytes_across_a_page, many_in_flight,
                bounds_and_rights_are_refused_at_home, forged_descriptors_end_the_connection,
                a_forged_read_ends_the_connection, an_export_is_of_one_connection, an_export_is_of_one_trust_group, revoked,
                a_lifetime_ends, the_peer_goes_away;
            packet: order_and_integrity, empty_messages, truncation_tells_the_true_length,
                a_large_message, many_small_messages, vectored, peek,
                a_message_over_the_limit_is_refused, a_cancelled_receive_loses_nothing;
            queue: depth_is_a_limit, thresholds, timeouts, wait_policies, a_thread_that_never_waits_gets_all_events,
                a_thread_that_only_polls_gets_all_events,
                several_threads_dequeue, several_threads_use_one_socket,
                the_descriptor_is_level_triggered, a_late_descriptor_is_readable,
                progress_without_a_waiter, poll_of_a_connection, each_of_many_sockets_is_received,
                busy_connections_starve_no_other, events_carry_the_number_of_their_socket;
            stream: order_and_integrity, order_and_integrity_with_small_rings, one_large_send,
                waitall, peek, zero_lengths, vectored, memory_of_all_kinds,
                a_vector_comes_back_without_a_copy, reads_and_writes_as_std_io;
        }
    };
}

/// What [`socket_contract!`](crate::socket_contract) is made of.
#[doc(hidden)]
#[macro_export]
macro_rules! socket_tests {
    ($env:path; $($group:ident: $($test:ident),+;)+) => {$(
        mod $group {$(
            #[test]
            fn $test() {
                $crate::socket::run(
                    concat!(module_path!(), "::", stringify!($test)),
                    $env(),
                    $crate::socket::$group::$test,
                );
            }
        )+}
    )+};
}
