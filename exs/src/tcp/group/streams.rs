//! The streams of a group, by their numbers. The side that opened the group numbers them from 1, and uses no
//! number twice.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use super::{MAX_PENDING, MAX_STREAMS};
use crate::mem::KeyHasher;

/// The holder of a stream in its group.
#[derive(Debug)]
pub(super) enum StreamHolder {
    /// This link.
    Link(u32),
    /// None: it waits for a listener. Its bytes so far, whether they are all, and the peer's port.
    Waiting { early: Vec<u8>, fin: bool, port: u16 },
}

/// The streams that have not ended, and how many began.
#[derive(Default)]
pub(super) struct GroupStreams {
    holders: HashMap<u32, StreamHolder, BuildHasherDefault<KeyHasher>>,
    /// Streams that the listener has not come to yet, and those of them that the peer has ended since.
    pending: usize,
    /// The stream that was opened last.
    last: u32,
}

impl GroupStreams {
    pub(super) fn len(&self) -> usize {
        self.holders.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    /// The holder of a stream. None: the stream has ended, or was never opened.
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&StreamHolder> {
        self.holders.get(&number)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut StreamHolder> {
        self.holders.get_mut(&number)
    }

    /// The link that holds a stream.
    #[inline]
    pub(super) fn link_of(&self, number: u32) -> Option<u32> {
        match self.get(number)? {
            StreamHolder::Link(link) => Some(*link),
            StreamHolder::Waiting { .. } => None,
        }
    }

    /// True if a stream of this number was opened. It may have ended.
    #[inline]
    pub(super) fn was_opened(&self, number: u32) -> bool {
        number <= self.last
    }

    /// The number of the next stream. None: all were used.
    pub(super) fn next_number(&self) -> Option<u32> {
        self.last.checked_add(1)
    }

    /// This side opens the next stream, for this link.
    pub(super) fn open(&mut self, number: u32, link: u32) {
        debug_assert_eq!(self.next_number(), Some(number));
        self.last = number;
        self.holders.insert(number, StreamHolder::Link(link));
    }

    /// The peer has opened a stream. False: it is not the next one.
    pub(super) fn take_number(&mut self, number: u32) -> bool {
        let next = self.next_number() == Some(number);
        if next {
            self.last = number;
        }
        next
    }

    /// True if the peer may have no stream more.
    pub(super) fn is_full(&self) -> bool {
        self.len() >= MAX_STREAMS as usize || self.pending >= MAX_PENDING
    }

    /// A stream of the peer's waits for the listener.
    pub(super) fn await_listener(&mut self, number: u32, port: u16) {
        self.pending += 1;
        let waiting = StreamHolder::Waiting { early: Vec::new(), fin: false, port };
        self.holders.insert(number, waiting);
    }

    /// The listener comes to a stream, which may have ended since.
    pub(super) fn listener_comes(&mut self) {
        self.pending -= 1;
    }

    /// The streams that no link has.
    pub(super) fn waiting(&self) -> impl Iterator<Item = u32> + use<'_> {
        let waits = |(_, holder): &(_, &_)| matches!(holder, StreamHolder::Waiting { .. });
        self.holders.iter().filter(waits).map(|(number, _)| *number)
    }

    /// A stream ends. False: it has ended before.
    pub(super) fn remove(&mut self, number: u32) -> bool {
        self.holders.remove(&number).is_some()
    }

    /// The links of a group that ends.
    pub(super) fn into_links(self) -> Vec<u32> {
        let link = |holder| match holder {
            StreamHolder::Link(link) => Some(link),
            StreamHolder::Waiting { .. } => None,
        };
        self.holders.into_values().filter_map(link).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_each_other_and_are_used_once() {
        let mut streams = GroupStreams::default();
        assert!(!streams.take_number(2), "1 comes first");
        assert!(streams.take_number(1) && !streams.take_number(1));
        assert_eq!((streams.was_opened(1), streams.was_opened(2)), (true, false));
        streams.await_listener(1, 4000);
        assert_eq!(streams.waiting().collect::<Vec<_>>(), [1]);
        streams.open(2, 7);
        assert_eq!((streams.link_of(1), streams.link_of(2), streams.len()), (None, Some(7), 2));
        assert!(streams.remove(2) && !streams.remove(2) && streams.was_opened(2));
        streams.last = u32::MAX;
        assert_eq!((streams.next_number(), streams.take_number(0)), (None, false));
    }

    #[test]
    fn streams_that_the_peer_ends_count_until_the_listener_comes_to_them() {
        let mut streams = GroupStreams::default();
        for number in 1..=u32::try_from(MAX_PENDING).unwrap() {
            assert!(!streams.is_full() && streams.take_number(number));
            streams.await_listener(number, 1);
            streams.remove(number);
        }
        assert!(streams.is_full() && streams.is_empty());
        streams.listener_comes();
        assert!(!streams.is_full());
    }
}
