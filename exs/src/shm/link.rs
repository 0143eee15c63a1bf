//! One connection: the shared memory, the UNIX socket beside it, and the state of both.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use super::attended::AttendantSleep;
use super::control::{ControlMessage, MAX_MESSAGE};
use super::ring::{Mem, Word};
use super::rx::Rx;
use super::slabs::SlabPlace;
use super::sleep::{FOR_END, FOR_RECORDS, FOR_ROOM};
use super::source::{PeerRegions, SharedRegions};
use super::tx::Tx;
use super::wake_up::{ReceivedBitmap, WakeUp};
use crate::driver::{LinkBase, LinkOwner};
use crate::iwarp::RxBuf;
use crate::mem::KeyTable;
use crate::rnic::{DisconnectCause, Qp, TermCode, Wc, WcOp, WcStatus};
use crate::sys::{ForeignFd, PeerCred, PeerSocket, recv_with_fds, send_with_fds};
use crate::time::Time;

/// Values of [`Word::State`] beside 0 (open): cut, or refused with a code in the low bytes.
const ABORTED: u64 = 1;
const REFUSED: u64 = 2 << 32;

/// Messages taken from one socket before others have their turn.
const MESSAGES_PER_TURN: usize = 16;

/// The phase of a connection. [`LinkPhase::TRANSITIONS`] is the table of its changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkPhase {
    /// No socket yet: the listener's backlog is full.
    Calling,
    /// Connecting side: HELLO was sent. Listening side: HELLO has come, and waits for an answer.
    Greeting,
    /// Connected.
    Open,
    /// Connected; either side has asked for an orderly end. The link goes when both last records
    /// were taken.
    Closing,
}

impl LinkPhase {
    /// Each change of phase that can happen. A link can be dropped in any phase.
    const TRANSITIONS: [(LinkPhase, LinkPhase); 3] = [
        (LinkPhase::Calling, LinkPhase::Greeting),
        (LinkPhase::Greeting, LinkPhase::Open),
        (LinkPhase::Open, LinkPhase::Closing),
    ];

    /// True once the start-up is over: records move.
    #[inline]
    pub(super) fn is_connected(self) -> bool {
        matches!(self, LinkPhase::Open | LinkPhase::Closing)
    }
}

/// Why a connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkError {
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
    /// The receives, and the number of completions that their CQ has room for.
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

/// What a transfer achieved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TransferOutcome {
    /// The budget ran out: there is more to do at once.
    pub(super) more: bool,
    /// Records or payload moved.
    pub(super) moved: bool,
}

/// The UNIX socket beside the memory.
pub(super) struct ControlSocket {
    /// None in the phase `Calling`.
    pub(super) sock: Option<PeerSocket>,
    /// It may have something to read.
    pub(super) readable: bool,
    /// The peer has hung up: nothing follows what is in its ring.
    pub(super) hung_up: bool,
}

/// The process at the other end, and the terms on which both ends have agreed.
pub(super) struct PeerTerms {
    pub(super) cred: PeerCred,
    /// It is a process of our own user.
    pub(super) trusted: bool,
    /// Our address, and the peer's.
    pub(super) addrs: (SocketAddr, SocketAddr),
    /// READs at a time that we may issue. Until ACCEPT: that the connecting side issues.
    pub(super) ord: u32,
    /// READs at a time that we answer. Until ACCEPT: that the connecting side answers.
    pub(super) ird: u32,
}

/// The state of a link for threads that poll.
pub(super) struct Polling {
    /// In the hot set.
    pub(super) hot: bool,
    /// Polls without a find since something moved.
    pub(super) misses: u32,
    /// The value of `ShmParts::pause_epoch` when eager receives were paused; 0: never.
    pub(super) paused_epoch: u64,
    /// When records or payload moved last.
    pub(super) last_moved: Time,
}

impl Polling {
    /// The state of a link that no thread has polled yet.
    pub(super) fn new(last_moved: Time) -> Polling {
        Polling { hot: false, misses: 0, paused_epoch: 0, last_moved }
    }
}

/// The message and the memory that the listener gets when it accepts.
pub(super) struct Greeting {
    /// The address of the connecting side.
    pub(super) caller: SocketAddr,
    pub(super) private_data: Vec<u8>,
    /// Where the memory lies.
    pub(super) place: SlabPlace,
}

/// A connection.
pub struct ShmLink {
    /// The driver's part. `stalled`: the next record waits for a receive.
    pub(super) base: LinkBase,
    pub(super) socket: ControlSocket,
    pub(super) mem: Mem,
    pub(super) phase: LinkPhase,
    pub(super) tx: Tx,
    pub(super) rx: Rx,
    pub(super) shares: SharedRegions,
    pub(super) views: PeerRegions,
    pub(super) peer: PeerTerms,
    pub(super) wake_up: WakeUp,
    pub(super) polling: Polling,
    /// Connecting side: None once the listener has it. Listening side: None.
    pub(super) greeting: Option<Greeting>,
    /// Connecting side: where the memory lies, if it may be used again.
    pub(super) place: Option<SlabPlace>,
    /// Listening side: the slab's inode and the place in it, if the memory may be used again.
    pub(super) origin: Option<((u64, u64), u32)>,
    /// How the peer had ended the connection when this turn began.
    pub(super) end: Option<LinkError>,
}

/// Input from the socket.
pub(super) enum SocketInput {
    /// A message of the start-up.
    Startup(ControlMessage),
    /// Nothing more, for now.
    Nothing,
    /// A message that breaks the protocol.
    Invalid,
}

impl ShmLink {
    pub(super) fn new(
        sock: Option<PeerSocket>,
        mem: Mem,
        owner: LinkOwner,
        addrs: (SocketAddr, SocketAddr),
    ) -> ShmLink {
        let phase = if sock.is_some() { LinkPhase::Greeting } else { LinkPhase::Calling };
        ShmLink {
            base: LinkBase::new(owner),
            // The reactor reports what has come before it was given the socket, too.
            socket: ControlSocket { sock, readable: false, hung_up: false },
            mem,
            phase,
            tx: Tx::default(),
            rx: Rx::default(),
            shares: SharedRegions::default(),
            views: PeerRegions::default(),
            peer: PeerTerms {
                cred: PeerCred { pid: 0, uid: u32::MAX },
                trusted: false,
                addrs,
                ord: 0,
                ird: 0,
            },
            wake_up: WakeUp::default(),
            polling: Polling::new(Time::ZERO),
            greeting: None,
            place: None,
            origin: None,
            end: None,
        }
    }

    /// Changes the phase.
    pub(super) fn enter(&mut self, next: LinkPhase) {
        let change = (self.phase, next);
        debug_assert!(LinkPhase::TRANSITIONS.contains(&change), "{change:?} is not in the table");
        self.phase = next;
    }

    /// The socket; None in the phase `Calling`.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.sock.as_ref().map(AsFd::as_fd)
    }

    /// Sends a message, without waiting. False if it was lost because the peer has no room for it:
    /// then the peer is awake, or other messages wake it.
    pub(super) fn send_control(&self, message: &ControlMessage, fds: &[BorrowedFd<'_>]) -> bool {
        self.fd().is_some_and(|fd| send_with_fds(fd, &message.emit(), fds).is_ok())
    }

    /// Reads the socket up to the next message of the start-up. Handles other messages itself, and
    /// notes in `hung_up` that the peer has hung up.
    pub(super) fn next_input(&mut self) -> SocketInput {
        for _ in 0..MESSAGES_PER_TURN {
            let mut buf = [0; MAX_MESSAGE];
            let Some(fd) = self.fd().filter(|_| self.socket.readable && !self.socket.hung_up)
            else {
                return SocketInput::Nothing;
            };
            let (n, fds) = match recv_with_fds(fd, &mut buf) {
                Ok((0, _)) => {
                    self.socket.hung_up = true;
                    return SocketInput::Nothing;
                }
                Ok(got) => got,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    self.socket.readable = false;
                    return SocketInput::Nothing;
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == std::io::ErrorKind::InvalidData => {
                    return SocketInput::Invalid;
                }
                Err(_) => {
                    self.socket.hung_up = true;
                    return SocketInput::Nothing;
                }
            };
            let Some(message) = ControlMessage::parse(&buf[..n]) else {
                return SocketInput::Invalid;
            };
            if !self.handle_control(&message, fds) {
                return SocketInput::Startup(message);
            }
        }
        SocketInput::Nothing
    }

    /// Handles a message that does not belong to the start-up. False if it is not such a message.
    /// `fds` is None if this process had no descriptors left for those that came with it.
    fn handle_control(&mut self, message: &ControlMessage, fds: Option<Vec<ForeignFd>>) -> bool {
        let lacking = fds.is_none();
        let mut fds = fds.unwrap_or_default();
        match (message, &mut fds[..]) {
            (ControlMessage::Bell, _) => self.wake_up.note_bell(),
            (&ControlMessage::PassBitmap { slot }, [_, _]) if self.peer.trusted => {
                if let (Some(button), Some(memfd)) = (fds.pop(), fds.pop()) {
                    self.wake_up.received_bitmap =
                        Some(Box::new(ReceivedBitmap { slot, memfd, button }));
                }
            }
            (ControlMessage::PassDescriptor, [_]) if self.peer.trusted => {
                self.wake_up.bell.adopt_descriptor(fds.pop());
            }
            (&ControlMessage::Share { slot, generation, len }, [fd]) if self.peer.trusted => {
                return self.views.add(slot, generation, len, fd);
            }
            // Without the region its bytes come by the lane; without the bitmap bells are messages.
            // The same for rings at a descriptor.
            (
                ControlMessage::PassBitmap { .. }
                | ControlMessage::PassDescriptor
                | ControlMessage::Share { .. },
                _,
            ) if lacking => {}
            (&ControlMessage::Unshare { slot, generation }, _) => {
                self.views.remove(slot, generation)
            }
            _ => return false,
        }
        true
    }

    /// Records the process at the other end. `us`: the user whose processes are trusted; None: no
    /// process is.
    pub(super) fn set_peer(&mut self, cred: PeerCred, us: Option<u32>) {
        (self.peer.cred, self.peer.trusted) = (cred, us == Some(cred.uid));
    }

    /// How the peer has ended the connection; None if it has not.
    pub(super) fn peer_end(&self) -> Option<LinkError> {
        match self.mem.theirs(Word::State) {
            0 => None,
            state if state & REFUSED != 0 => {
                let [code, etype, layer, ..] = state.to_le_bytes();
                Some(LinkError::Refused(TermCode { layer, etype, code }))
            }
            _ => Some(LinkError::Gone),
        }
    }

    /// Shows the peer how this side ends the connection, and wakes it. An orderly end needs no
    /// word: the peer sees the last record.
    pub(super) fn publish_end(&self, cause: DisconnectCause) {
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

    /// Receives up to `rx_budget` bytes and sends up to `tx_budget`, as far as the peer lets us.
    pub(super) fn transfer(
        &mut self,
        env: &mut Env<'_>,
        (rx_budget, tx_budget): (usize, usize),
    ) -> Result<TransferOutcome, LinkError> {
        let received = self.receive(env, rx_budget)?;
        let sent = self.transmit(env, tx_budget)?;
        let more = received.more || sent.more;
        Ok(TransferOutcome { more, moved: received.moved || sent.moved })
    }

    /// True if nothing is under way but the next record.
    pub(super) fn rests(&self) -> bool {
        let open = self.phase == LinkPhase::Open && !self.socket.hung_up;
        let awake = self.wake_up.attendant == AttendantSleep::Awake;
        let away = awake && !self.is_lent() && self.end.is_none();
        open && away && self.tx.rests() && self.rx.rests() && self.peer_end().is_none()
    }

    /// True if the words and records of the peer give this side something to do.
    pub(super) fn has_work(&self) -> bool {
        self.rx.has_work(&self.mem, self.base.stalled)
            || self.tx.has_work(&self.mem)
            || self.mem.theirs(Word::State) != 0
    }

    /// What to wake this side for.
    pub(super) fn wants(&self) -> u64 {
        let room = if self.tx.waits_for_peer() { FOR_ROOM } else { 0 };
        FOR_RECORDS | FOR_END | room
    }

    /// Announces what to wake this side for. True if there is work already: then it stays awake.
    pub(super) fn arm(&mut self) -> bool {
        self.end_polled_sleep();
        self.report_consumed();
        self.mem.sleep_words().announce_sleep(self.wants());
        let found = self.has_work();
        if found {
            self.mem.sleep_words().announce_awake();
        }
        found
    }
}
