//! Links that are lent to the threads that block on them.
//!
//! A thread that has the two ends of the rings needs the driver for nothing but a peer that must be
//! woken by a message. So such a thread writes and takes small records itself. It sleeps on the word
//! `Asleep`, and the peer wakes it there.

use std::fmt;

use super::ShmRnic;
use super::attended::AttendantSleep;
use super::consumer_index::RingReader;
use super::link::{LinkPhase, ShmLink};
use super::ring::{Area, LINE, Mem, Word};
use super::ring_window::RingWriter;
use super::sleep::{BY_WORD, FOR_END, FOR_RECORDS, FOR_ROOM};
use super::tx::MAX_IN_RECORD;
use super::wake_up::PeerBell;
use crate::driver::Source;
use crate::rnic::{HEAD, LentConnection, LentSend, LentWait};
use crate::sys::{Hint, IoVec, IoVecMut};

/// What a thread that sleeps wants to be woken for. It waits for no room.
const WANTS: u64 = FOR_RECORDS | FOR_END | BY_WORD;

/// The rings of a link.
pub struct LentRings {
    mem: Mem,
    writer: RingWriter,
    reader: RingReader,
    bell: PeerBell,
    /// The peer must be woken by a message.
    owes_bell: bool,
    /// Bytes of the record whose message the thread has.
    taken: u64,
    /// The word says that this side sleeps, unless the peer has woken it.
    sleeps: bool,
}

impl fmt::Debug for LentRings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (written, read) = (self.writer.pos, self.reader.pos);
        let mut out = f.debug_struct("LentRings");
        out.field("written", &written).field("read", &read).finish_non_exhaustive()
    }
}

impl LentRings {
    fn has_record(&self) -> bool {
        self.mem.has_record(self.reader.pos)
    }

    fn has_ended(&self) -> bool {
        self.mem.theirs(Word::State) != 0
    }

    /// Reports what was read, and wakes a peer that waits for room. False: the peer must be woken by a
    /// message.
    fn report(&mut self) -> bool {
        if self.reader.report(&self.mem) && !self.bell.ring(&self.mem.sleep_words(), FOR_ROOM) {
            self.owes_bell = true;
        }
        !self.owes_bell
    }

    /// Announces that a thread sleeps. False: there is a record already, or the connection has ended.
    fn announce_sleep(&mut self) -> bool {
        self.mem.sleep_words().announce_sleep(WANTS);
        self.sleeps = true;
        !self.has_record() && !self.has_ended()
    }

    fn announce_awake(&mut self) {
        if std::mem::take(&mut self.sleeps) {
            self.mem.sleep_words().announce_awake();
        }
    }
}

impl LentConnection for LentRings {
    fn poll(&self) -> Option<bool> {
        Some(self.has_record() || self.has_ended())
    }

    fn wait(&mut self, room: &mut Vec<u8>) -> LentWait {
        loop {
            if !self.has_record() {
                if self.has_ended() || !self.report() {
                    return LentWait::End;
                }
                if self.announce_sleep() {
                    return LentWait::Word(self.mem.own_sleep_word(WANTS));
                }
                self.announce_awake();
                continue;
            }
            self.announce_awake();
            if let Some(head) = self.reader.next_message(&self.mem) {
                room.resize(head.inline, 0);
                let at = self.reader.pos + head.payload_at();
                self.mem.get(Area::Ring, at, &IoVecMut::new(room));
                self.taken = head.len();
                return LentWait::Came;
            }
            // A skip may have been followed.
            if self.has_record() {
                return LentWait::End;
            }
        }
    }

    fn message<'b>(&self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        Some(bytes)
    }

    fn note_received(&mut self) -> bool {
        self.reader.pos += std::mem::take(&mut self.taken);
        self.reader.must_report() && !self.report()
    }

    fn send(&mut self, head: &[u8], data: &IoVec<'_>) -> LentSend {
        self.mem.hint(Hint::Take, self.writer.pos, LINE);
        let (most, mut header) = (head.len() + data.len(), [0; HEAD]);
        let Some(to) = header.get_mut(..head.len()) else { return LentSend::Declined };
        to.copy_from_slice(head);
        let fits = most <= MAX_IN_RECORD && !self.has_ended();
        if !fits || !self.writer.reserve_message(most, &self.mem) {
            return LentSend::Declined;
        }
        let (header, read) = ((&header, head.len()), self.reader.pos);
        self.writer.write_message(header, data, read, &self.mem);
        // The consumer index leaves with the message.
        let room = self.reader.publish(&self.mem);
        let (words, what) = (self.mem.sleep_words(), FOR_RECORDS | room);
        if !self.bell.ring_for_message(&words, data.len(), what) {
            self.owes_bell = true;
            return LentSend::Unfinished;
        }
        LentSend::Sent
    }
}

impl Drop for LentRings {
    fn drop(&mut self) {
        if self.sleeps {
            self.mem.sleep_words().wake_own();
        }
    }
}

impl ShmLink {
    /// Lends the link, if a thread attends it and nothing but the next message is under way.
    fn lend(&mut self, busy_links: usize) -> Option<LentRings> {
        // A sleeper of a loan waits for the word alone, to which the peer can write.
        let trusted = self.peer.trusted && !self.is_lent();
        let open = self.phase == LinkPhase::Open && !self.socket.hung_up;
        let rests = self.tx.rests() && self.rx.rests() && !self.base.stalled && !self.base.queued;
        let sleeps = self.wake_up.attendant == AttendantSleep::OnWord;
        if !trusted || !open || !rests || !sleeps || !self.base.attended || self.socket.readable {
            return None;
        }
        self.wake_up.attendant = AttendantSleep::Lent;
        let (mem, bell) = (self.mem.view(), self.wake_up.bell.clone());
        let (mut writer, reader) = (self.tx.ring.clone(), self.rx.ring.clone());
        writer.window.set_busy_links(busy_links);
        Some(LentRings { mem, writer, reader, bell, owes_bell: false, taken: 0, sleeps: true })
    }

    /// Takes the link back.
    fn end_loan(&mut self, loan: &LentRings) {
        (self.tx.ring, self.rx.ring) = (loan.writer.clone(), loan.reader.clone());
        self.wake_up.attendant = AttendantSleep::Awake;
        if loan.owes_bell {
            self.ring_by_message();
        }
    }

    /// True if threads have the rings.
    pub(super) fn is_lent(&self) -> bool {
        self.wake_up.attendant == AttendantSleep::Lent
    }
}

impl ShmRnic {
    /// Lends a link to the threads that block on it (`Rnic::lend`).
    pub(super) fn lend_link(&mut self, id: u32) -> Option<LentRings> {
        let busy = self.parts.hot.len();
        self.links.get_mut(id).ok()?.lend(busy)
    }

    /// Takes a link back (`Rnic::end_loan`).
    pub(super) fn take_back_link(&mut self, id: u32, loan: &LentRings) {
        let Ok(link) = self.links.get_mut(id) else { return };
        link.end_loan(loan);
        // What has come to the socket meanwhile was left there.
        if link.socket.readable || link.has_work() {
            self.enqueue(Source::Link(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{RecordHead, RecordKind};
    use super::*;

    fn send(side: &mut LentRings, head: &[u8], data: &[u8]) -> LentSend {
        side.send(head, &IoVec::new(data))
    }

    /// Both sides of one connection.
    fn both() -> [LentRings; 2] {
        let (a, b) = Mem::both([0x1234, 0x5678]);
        [a, b].map(|mem| LentRings {
            mem,
            writer: RingWriter::default(),
            reader: RingReader::default(),
            bell: PeerBell::default(),
            owes_bell: false,
            taken: 0,
            sleeps: false,
        })
    }

    /// Takes the next message, which is there.
    fn take(side: &mut LentRings) -> Vec<u8> {
        let mut room = vec![0xEE; 7];
        assert_eq!(side.poll(), Some(true));
        assert!(matches!(side.wait(&mut room), LentWait::Came));
        let message = side.message(&room).expect("it is one").to_vec();
        assert!(!side.note_received());
        message
    }

    #[test]
    fn messages_of_all_sizes_go_around_the_ring() {
        let rounds = if cfg!(miri) { 30 } else { 3000 };
        let [mut a, mut b] = both();
        for round in 0..rounds {
            let data = vec![u8::try_from(round % 251).unwrap(); (round * 379) % 8000];
            assert_eq!(send(&mut a, b"question", &data), LentSend::Sent);
            assert_eq!(take(&mut b), [b"question", &data[..]].concat());
            assert_eq!(send(&mut b, b"", &data), LentSend::Sent);
            assert_eq!(take(&mut a), data);
        }
        assert_eq!(a.poll(), Some(false));
    }

    #[test]
    fn a_ring_without_room_takes_nothing_until_the_peer_has_read() {
        let [mut a, mut b] = both();
        let mut sent = 0;
        while send(&mut a, b"x", &[7; 1000]) == LentSend::Sent {
            sent += 1;
        }
        assert!(sent > 100 || cfg!(miri), "{sent}");
        (0..sent).for_each(|_| assert_eq!(take(&mut b).len(), 1001));
        assert_eq!(b.poll(), Some(false), "what found no room has left nothing");
        assert_eq!(send(&mut a, b"x", &[7; 1000]), LentSend::Sent);
    }

    #[test]
    fn messages_beyond_a_record_are_declined() {
        let [mut a, b] = both();
        assert_eq!(send(&mut a, &[1; 48], &[2; MAX_IN_RECORD - 47]), LentSend::Declined);
        assert_eq!(send(&mut a, &[1; HEAD + 1], b""), LentSend::Declined);
        assert_eq!(b.poll(), Some(false));
    }

    #[test]
    fn anything_but_a_message_ends_the_loan_and_stays() {
        let [mut a, mut b] = both();
        let mut room = Vec::new();
        let (mem, other) = (a.mem.view(), RecordHead::short(RecordKind::Fin, 0, 0));
        assert!(a.writer.reserve(other.len(), &mem));
        a.writer.append(&other, |_, _| {}, &[], &mem);
        assert!(matches!(b.wait(&mut room), LentWait::End));
        assert!(b.has_record(), "it is for the engine");
        let [a, mut b] = both();
        a.mem.set(Word::State, 1);
        assert_eq!(b.poll(), Some(true));
        assert!(matches!(b.wait(&mut room), LentWait::End));
        assert_eq!(send(&mut b, b"x", b"y"), LentSend::Declined);
    }

    #[test]
    fn a_peer_that_sleeps_elsewhere_is_left_to_the_engine() {
        let [mut a, b] = both();
        b.mem.sleep_words().announce_sleep(FOR_RECORDS | FOR_END);
        assert_eq!(send(&mut a, b"x", b"y"), LentSend::Unfinished);
        assert!(b.has_record() && a.owes_bell);
        let mut room = Vec::new();
        assert!(matches!(a.wait(&mut room), LentWait::End));
    }

    /// Two threads send each other messages, and sleep whenever there is none.
    #[test]
    #[cfg(not(miri))]
    fn sleepers_are_woken_by_messages() {
        const MESSAGES: u32 = 20_000;
        let [mut a, mut b] = both();
        let converse = |side: &mut LentRings, first: bool| {
            let mut room = Vec::new();
            for n in 0..MESSAGES {
                if first {
                    assert_eq!(send(side, b"", &n.to_ne_bytes()), LentSend::Sent);
                }
                while let LentWait::Word(word) = side.wait(&mut room) {
                    word.sleep_alone();
                }
                assert_eq!(room, n.to_ne_bytes());
                side.note_received();
                if !first {
                    assert_eq!(send(side, b"", &n.to_ne_bytes()), LentSend::Sent);
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| converse(&mut a, true));
            converse(&mut b, false);
        });
    }

    #[test]
    #[cfg(not(miri))]
    fn the_end_of_a_loan_wakes_its_sleeper() {
        let [_a, mut b] = both();
        let LentWait::Word(word) = b.wait(&mut Vec::new()) else { panic!("there is nothing") };
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(move || word.sleep_alone());
            drop(b);
            sleeper.join().unwrap();
        });
    }
}
