//! The unreachable cache: peers that did not answer by a device.
//!
//! The route to a peer may lead by an RDMA device although the peer never answers there. Perhaps it
//! has no such device itself, or a switch does not carry RoCE. Only a timeout shows this, and each
//! connect would wait for it again. So the engine notes for a minute that the peer was silent.
//! Meanwhile it tries the device last for this peer, after the software RNIC. Any answer removes
//! the note.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use crate::time::Time;

/// How long a note counts.
const HOLD: Duration = Duration::from_secs(60);
/// The most notes: the oldest makes way for a new one. Each connect searches through them.
const MOST: usize = 256;

/// The notes.
#[derive(Default)]
pub(super) struct Unreachable {
    /// (device, peer, time), the oldest first.
    notes: VecDeque<(usize, IpAddr, Time)>,
}

impl Unreachable {
    /// Notes that the peer did not answer by this device.
    pub(super) fn note(&mut self, device: usize, peer: IpAddr, now: Time) {
        self.forget(device, peer);
        if self.notes.len() == MOST {
            self.notes.pop_front();
        }
        self.notes.push_back((device, peer, now));
    }

    /// The peer has answered: removes its note.
    pub(super) fn forget(&mut self, device: usize, peer: IpAddr) {
        self.notes.retain(|(d, p, _)| (*d, *p) != (device, peer));
    }

    /// Another device has taken this index: removes the notes of the old one.
    pub(super) fn forget_device(&mut self, device: usize) {
        self.notes.retain(|(d, ..)| *d != device);
    }

    /// The time since the peer did not answer. `None`: it did, or that was more than [`HOLD`] ago.
    pub(super) fn since(&self, device: usize, peer: IpAddr, now: Time) -> Option<Duration> {
        let note = self.notes.iter().find(|(d, p, _)| (*d, *p) == (device, peer))?;
        Some(now.since(note.2)).filter(|ago| *ago < HOLD)
    }
}

/// Describes a note for a human reader.
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
