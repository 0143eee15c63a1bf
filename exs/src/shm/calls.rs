//! Calls that wait for room in the backlog of their listener.
//!
//! A UNIX socket cannot wait for that. So the calls are tried again, in order: of those to one
//! listener only the first, and the next when the one before has come in. Ten thousand calls at once
//! thus cost one system call at a time and not one each.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use super::ShmRnic;
use super::control::canonical;
use super::link::LinkPhase;
use crate::time::Time;

/// Interval between attempts while the backlog of a listener is full.
const RETRY: Duration = Duration::from_millis(2);

/// The calls that wait, by the address that they call, in order.
#[derive(Default)]
pub(super) struct WaitingCalls {
    calls: HashMap<SocketAddr, VecDeque<u32>>,
    /// When the first of each is tried again; None: no call waits.
    due: Option<Time>,
}

impl WaitingCalls {
    pub(super) fn due(&self) -> Option<Time> {
        self.due
    }

    /// True if calls to this address wait already: further ones wait behind them.
    pub(super) fn has_some(&self, called: SocketAddr) -> bool {
        self.calls.contains_key(&called)
    }

    pub(super) fn push(&mut self, called: SocketAddr, link: u32, now: Time) {
        self.calls.entry(called).or_default().push_back(link);
        self.due.get_or_insert(now + RETRY);
    }
}

impl ShmRnic {
    /// Tries the calls that wait, if it is time to.
    pub(super) fn retry_calls(&mut self, now: Time) {
        if self.parts.waiting_calls.due.is_none_or(|due| due > now) {
            return;
        }
        let mut calls = std::mem::take(&mut self.parts.waiting_calls.calls);
        calls.retain(|_, waiting| {
            while let Some(&id) = waiting.front() {
                let calls = |link: &super::ShmLink| link.phase == LinkPhase::Calling;
                if self.links.get(id).is_ok_and(|link| calls(link)) {
                    match self.try_names(id, now) {
                        Ok(true) => {}
                        Ok(false) => return true,
                        Err(e) => self.fail_attempt(id, e),
                    }
                }
                waiting.pop_front();
            }
            false
        });
        let waiting = &mut self.parts.waiting_calls;
        waiting.due = (!calls.is_empty()).then(|| now + RETRY);
        waiting.calls = calls;
    }

    /// A call finds the backlog of its listener full.
    pub(super) fn wait_for_room(&mut self, id: u32, now: Time) {
        if let Ok(link) = self.links.get(id) {
            let called = canonical(link.peer.addrs.1);
            self.parts.waiting_calls.push(called, id, now);
        }
    }
}
