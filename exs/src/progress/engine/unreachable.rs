//! Peers that did not answer by a device.
//!
//! The way to a peer may go by an RDMA device although the peer answers there to
//! nobody: it has no device itself, or a switch does not carry RoCE. Nothing but a wait
//! tells, and each connect to it would wait anew. So a peer that was silent is noted for
//! a minute, and meanwhile the device comes last for it: after the software RNIC. An
//! answer of any kind takes the note away.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use crate::time::Time;

/// How long a silence is held against a device.
const HOLD: Duration = Duration::from_secs(60);
/// Peers noted at most: the oldest makes way. Each costs a search through them.
const MOST: usize = 256;

/// The notes, the oldest first.
#[derive(Default)]
pub(super) struct Unreachable {
    notes: VecDeque<(usize, IpAddr, Time)>,
}

impl Unreachable {
    /// The peer has not answered by this device.
    pub(super) fn note(&mut self, device: usize, peer: IpAddr, now: Time) {
        self.forget(device, peer);
        if self.notes.len() == MOST {
            self.notes.pop_front();
        }
        self.notes.push_back((device, peer, now));
    }

    /// The peer has answered.
    pub(super) fn forget(&mut self, device: usize, peer: IpAddr) {
        self.notes.retain(|(d, p, _)| (*d, *p) != (device, peer));
    }

    /// The device is another one now.
    pub(super) fn forget_device(&mut self, device: usize) {
        self.notes.retain(|(d, ..)| *d != device);
    }

    /// How long ago the peer was silent, if that counts still.
    pub(super) fn since(&self, device: usize, peer: IpAddr, now: Time) -> Option<Duration> {
        let note = self.notes.iter().find(|(d, p, _)| (*d, *p) == (device, peer))?;
        Some(now.since(note.2)).filter(|ago| *ago < HOLD)
    }
}

/// For people: how a silence is put.
pub(super) fn describe(ago: Duration) -> String {
    let left = HOLD.saturating_sub(ago).as_secs();
    format!(
        "the peer did not answer by it {} s ago, so it comes last for {left} s more",
        ago.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u8) -> IpAddr {
        IpAddr::from([10, 0, n / 100, n])
    }

    #[test]
    fn a_silence_is_held_for_a_minute() {
        let (mut s, t) = (Unreachable::default(), Time::ZERO + Duration::from_secs(5));
        s.note(1, peer(1), t);
        let after = |secs| t + Duration::from_secs(secs);
        assert_eq!(s.since(1, peer(1), after(59)), Some(Duration::from_secs(59)));
        assert_eq!(s.since(1, peer(1), after(60)), None);
        assert_eq!((s.since(2, peer(1), t), s.since(1, peer(2), t)), (None, None));
        s.note(1, peer(1), after(50));
        assert!(s.since(1, peer(1), after(60)).is_some(), "silent again");
        s.forget(1, peer(1));
        assert_eq!(s.since(1, peer(1), after(60)), None);
    }

    #[test]
    fn the_table_is_bounded() {
        let (mut s, t) = (Unreachable::default(), Time::ZERO);
        for i in 0..10_000u32 {
            s.note(1, IpAddr::from(i.to_be_bytes()), t);
        }
        assert_eq!(s.notes.len(), MOST);
        assert!(s.since(1, IpAddr::from(9_999u32.to_be_bytes()), t).is_some());
        s.forget_device(1);
        assert!(s.notes.is_empty());
    }
}
