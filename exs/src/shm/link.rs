//! One connection: the shared memory, the UNIX socket beside it, and how far both are.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::doorbells::PeerBitmap;
use super::greet::{MAX_MESSAGE, Message};
use super::ring::{Mem, Word};
use super::rx::Rx;
use super::source::{Shares, Views};
use super::tx::Tx;
use crate::iwarp::RxBuf;
use crate::mem::KeyTable;
use crate::rnic::{DisconnectCause, Qp, TermCode, Wc, WcOp, WcStatus};
use crate::sys::{ForeignFd, PeerCred, PeerSocket, recv_with_fds, send_with_fds};
use crate::time::Time;

/// To be woken for records and payload.
pub(super) const FOR_RECORDS: u64 = 1;
/// To be woken when the peer is done with records, or has made room.
pub(super) const FOR_ROOM: u64 = 2;
/// To be woken for the end.
pub(super) const FOR_END: u64 = 4;

/// Values of [`Word::State`]: open, cut, or (with a code) refused.
const ABORTED: u64 = 1;
const REFUSED: u64 = 2 << 32;

/// Bells by the socket after which marks take their place.
const BELLS: u32 = 8;
/// Messages taken from a socket at a time.
const MESSAGES: usize = 16;

/// Whom a link works for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A queue pair.
    Qp(u32),
    /// A listener, and a request that waits for its answer.
    Asking { listener: u32, req: u32 },
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The listener has no room yet: there is no socket.
    Calling,
    /// HELLO has gone, or is awaited.
    Greeting,
    /// ACCEPT has gone, READY is awaited.
    Accepted,
    /// Connected.
    Open,
}

/// Why a connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The peer broke a rule.
    Violation(TermCode),
    /// The peer is gone, or has cut the connection.
    Gone,
    /// The peer says that this side broke a rule.
    Refused(TermCode),
}

/// What a connection needs of its RNIC to move data.
pub(super) struct Env<'a> {
    pub(super) keys: &'a KeyTable,
    pub(super) pd: u32,
    pub(super) qp: u32,
    /// Where receives come from, and for how many there is room in their CQ.
    pub(super) recvs: &'a mut VecDeque<RxBuf>,
    pub(super) room: usize,
    pub(super) wcs: &'a mut Vec<Wc>,
}

impl Env<'_> {
    /// The next receive, if there is one.
    pub(super) fn take(&mut self) -> Option<RxBuf> {
        if self.room == 0 {
            return None;
        }
        let buf = self.recvs.pop_front()?;
        self.room -= 1;
        Some(buf)
    }

    pub(super) fn wc(&self, wr_id: u64, op: WcOp, status: WcStatus, byte_len: u64) -> Wc {
        Wc {
            wr_id,
            qp: Qp(self.qp),
            status,
            op,
            byte_len,
            imm: None,
            invalidated: None,
            solicited: false,
        }
    }
}

/// What a turn of a connection came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pass {
    /// The budget ran out: there is more to do at once.
    pub(super) more: bool,
    /// Something was moved.
    pub(super) moved: bool,
}

/// The bell of the other side.
#[derive(Default)]
enum Bell {
    /// A message on the socket, for connections that are mostly idle.
    #[default]
    Message,
    /// The board of its process, and the place on it. Only of a peer of our user.
    DoorbellBitmap(Arc<PeerBitmap>, u32),
}

/// A board that has come, and is not yet known.
pub(super) struct NewBoard {
    pub(super) slot: u32,
    pub(super) memfd: ForeignFd,
    pub(super) button: ForeignFd,
}

/// A connection.
pub(super) struct Link {
    pub(super) sock: Option<PeerSocket>,
    pub(super) mem: Mem,
    pub(super) owner: Owner,
    pub(super) phase: Phase,
    pub(super) tx: Tx,
    pub(super) rx: Rx,
    pub(super) shares: Shares,
    pub(super) views: Views,
    bell: Bell,
    pub(super) new_board: Option<Box<NewBoard>>,
    /// The peer has our board, so this connection need not be looked at.
    pub(super) given: bool,
    bells: u32,
    pub(super) cred: PeerCred,
    /// The peer is of our own user.
    pub(super) trusted: bool,
    /// (Ours, the peer's).
    pub(super) addrs: (SocketAddr, SocketAddr),
    /// READs as negotiated: that we may issue, that we answer.
    pub(super) ord: u32,
    pub(super) ird: u32,
    /// What there is to say, and to hand over, while there is no socket.
    pub(super) hello: Vec<u8>,
    pub(super) memfd: Option<OwnedFd>,
    /// An orderly end was asked for, by either side.
    pub(super) closing: bool,
    /// The socket has something to read.
    pub(super) readable: bool,
    /// The peer has hung up: what it has left in the ring is all there will be.
    pub(super) hung_up: bool,
    /// How the peer had ended the connection when this turn began.
    pub(super) end: Option<End>,
    /// Waits for a receive.
    pub(super) stalled: bool,
    /// On the ready list; on the list of those that are looked at while spinning.
    pub(super) queued: bool,
    pub(super) hot: bool,
    /// Looks in vain since something moved.
    pub(super) misses: u32,
    /// The last time (by `ShmRnic::taking`) that its messages were to be left where they are.
    pub(super) aside: u64,
    /// How far we had read when we sent a small message last.
    pub(super) answered: u64,
    /// When something moved.
    pub(super) moved: Time,
}

/// What came by the socket.
pub(super) enum Note {
    /// A message of the start-up.
    Message(Message),
    /// Nothing more, for now.
    Nothing,
    /// Something that makes no sense.
    Nonsense,
}

impl Link {
    pub(super) fn new(
        sock: Option<PeerSocket>,
        mem: Mem,
        owner: Owner,
        addrs: (SocketAddr, SocketAddr),
    ) -> Link {
        let phase = if sock.is_some() { Phase::Greeting } else { Phase::Calling };
        Link {
            sock,
            mem,
            owner,
            phase,
            tx: Tx::default(),
            rx: Rx::default(),
            shares: Shares::default(),
            views: Views::default(),
            bell: Bell::default(),
            new_board: None,
            given: false,
            bells: 0,
            cred: PeerCred { pid: 0, uid: u32::MAX },
            trusted: false,
            addrs,
            ord: 0,
            ird: 0,
            hello: Vec::new(),
            memfd: None,
            closing: false,
            // An edge may have passed before anybody listened for it.
            readable: true,
            hung_up: false,
            end: None,
            stalled: false,
            queued: false,
            hot: false,
            misses: 0,
            aside: 0,
            answered: 0,
            moved: Time::ZERO,
        }
    }

    /// The socket, which is there in all phases but the first.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.sock.as_ref().map(AsFd::as_fd)
    }

    /// Sends a message. One that the peer has no room for is lost: it is not reading, so
    /// it is awake, or has other messages to wake for.
    pub(super) fn say(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> bool {
        self.fd().is_some_and(|fd| send_with_fds(fd, &message.emit(), fds).is_ok())
    }

    /// Wakes the peer if it sleeps and wants to know of `what`.
    pub(super) fn ring(&self, what: u64) {
        if self.mem.wants_bell(what) {
            let marked = match &self.bell {
                Bell::DoorbellBitmap(board, slot) => board.mark(*slot),
                Bell::Message => false,
            };
            if !marked {
                self.say(&Message::Bell, &[]);
            }
        }
    }

    /// The next message of the start-up, or that the peer has hung up. Others are dealt
    /// with here.
    pub(super) fn next_note(&mut self) -> Note {
        for _ in 0..MESSAGES {
            let mut buf = [0; MAX_MESSAGE];
            let Some(fd) = self.fd().filter(|_| self.readable && !self.hung_up) else {
                return Note::Nothing;
            };
            let (n, fds) = match recv_with_fds(fd, &mut buf) {
                Ok((0, _)) => {
                    self.hung_up = true;
                    return Note::Nothing;
                }
                Ok(got) => got,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    self.readable = false;
                    return Note::Nothing;
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == std::io::ErrorKind::InvalidData => return Note::Nonsense,
                Err(_) => {
                    self.hung_up = true;
                    return Note::Nothing;
                }
            };
            let Some(message) = Message::parse(&buf[..n]) else { return Note::Nonsense };
            if !self.aside(&message, fds) {
                return Note::Message(message);
            }
        }
        Note::Nothing
    }

    /// Deals with a message that is none of the start-up's. No `fds`: this process had no
    /// descriptors left for them.
    fn aside(&mut self, message: &Message, fds: Option<Vec<ForeignFd>>) -> bool {
        let lacking = fds.is_none();
        let mut fds = fds.unwrap_or_default();
        match (message, &mut fds[..]) {
            (Message::Bell, _) => self.bells = self.bells.saturating_add(1),
            (&Message::PassBoard { slot }, [_, _]) if self.trusted => {
                if let (Some(button), Some(memfd)) = (fds.pop(), fds.pop()) {
                    self.new_board = Some(Box::new(NewBoard { slot, memfd, button }));
                }
            }
            (&Message::Share { slot, generation, len }, [fd]) if self.trusted => {
                return self.views.add(slot, generation, len, fd);
            }
            // What is not there will be asked for by the lane, and bells will be messages.
            (Message::PassBoard { .. } | Message::Share { .. }, _) if lacking => {}
            (&Message::Unshare { slot, generation }, _) => self.views.remove(slot, generation),
            _ => return false,
        }
        true
    }

    /// True if it is time for marks in place of messages, or (`many`) of looks.
    pub(super) fn wants_board(&self, many: bool) -> bool {
        self.trusted && !self.given && (many || self.bells >= BELLS)
    }

    /// Rings by marks from now on.
    pub(super) fn mark_on(&mut self, board: Arc<PeerBitmap>, slot: u32) {
        self.bell = Bell::DoorbellBitmap(board, slot);
    }

    /// Notes the process at the other end (`us`: the user whom we trust).
    pub(super) fn know(&mut self, cred: PeerCred, us: Option<u32>) {
        (self.cred, self.trusted) = (cred, us == Some(cred.uid));
    }

    /// How the peer has ended the connection, if it has.
    pub(super) fn their_end(&self) -> Option<End> {
        match self.mem.theirs(Word::State) {
            0 => None,
            state if state & REFUSED != 0 => {
                let [code, etype, layer, ..] = state.to_le_bytes();
                Some(End::Refused(TermCode { layer, etype, code }))
            }
            _ => Some(End::Gone),
        }
    }

    /// Lets the peer see how this side ends the connection.
    pub(super) fn tell_end(&self, cause: DisconnectCause) {
        let state = match cause {
            DisconnectCause::Orderly => return,
            DisconnectCause::TerminatedByUs(TermCode { layer, etype, code }) => {
                REFUSED | u64::from(layer) << 16 | u64::from(etype) << 8 | u64::from(code)
            }
            _ => ABORTED,
        };
        self.mem.set(Word::State, state);
        self.ring(FOR_END);
    }

    /// Moves what can be moved: so many bytes that come, and so many that go.
    pub(super) fn turn(
        &mut self,
        env: &mut Env<'_>,
        (come, go): (usize, usize),
    ) -> Result<Pass, End> {
        let received = self.receive(env, come)?;
        let sent = self.transmit(env, go)?;
        let more = received.more || sent.more;
        Ok(Pass { more, moved: received.moved || sent.moved })
    }

    /// True if there is something to do, by the words of the peer.
    pub(super) fn peek(&self) -> bool {
        self.rx.peek(&self.mem, self.stalled)
            || self.tx.peek(&self.mem)
            || self.mem.theirs(Word::State) != 0
    }

    /// Says that we sleep. True if there is something to do already: then we do not.
    pub(super) fn arm(&mut self) -> bool {
        self.tell_consumed();
        let room = if self.tx.waits_for_peer() { FOR_ROOM } else { 0 };
        self.mem.fall_asleep(FOR_RECORDS | FOR_END | room);
        let found = self.peek();
        if found {
            self.mem.wake_up();
        }
        found
    }
}
