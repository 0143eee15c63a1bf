//! The interface of a transport: its links, their start-up, and their traffic.
//!
//! The hooks are functions of the link's type, called by static dispatch. A hook that takes the
//! driver may do anything with its tables.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::Driver;
use super::qp::QueuePair;
use super::turns::{ReactorShare, Source};
#[cfg(any(test, feature = "internals"))]
use crate::iwarp::RxBuf;
use crate::iwarp::TxWr;
use crate::mem::Key;
use crate::rnic::{
    AttemptNumber, Attended, AttendedBlock, AttendedEnd, AttendedWait, ConnParam, DeferredEnd,
    DeferredWrite, Disconnect, EagerRecv, EagerSend, HEAD, LentConnection, ListenOpts, PolledSleep,
    Qp, QpState, Ready, RnicError, StarvedListener, TakesGroups,
};
use crate::sys::{IoVec, SharedStream};
use crate::time::Time;

/// The object that a link works for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkOwner {
    /// A queue pair.
    Qp(u32),
    /// A listener; the connection request has not come yet.
    Startup(u32),
    /// A connection request that waits for the program's answer, and its listener; None: another
    /// RNIC accepted the connection.
    Request {
        /// The listener whose backlog it counts against.
        listener: Option<u32>,
        /// Its number in the table of requests.
        req: u32,
    },
    /// None: the link sends its last bytes and closes.
    Unowned,
}

/// The connection of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conn {
    /// Nothing yet.
    None,
    /// A connection that has no link yet.
    Opening(u32),
    /// A link, which may still be starting up.
    Link(u32),
    /// Nothing any more: the connection has ended.
    Dead,
}

/// The driver's own part of each link.
#[derive(Debug)]
pub struct LinkBase {
    /// The object that the link works for.
    pub(crate) owner: LinkOwner,
    /// On the ready list.
    pub(crate) queued: bool,
    /// Waits for a receive.
    pub(crate) stalled: bool,
    /// A thread attends it: its descriptor is not in the reactor.
    pub(crate) attended: bool,
    /// The connection attempt that made it. None: it was accepted.
    pub(crate) attempt: Option<AttemptNumber>,
}

impl LinkBase {
    /// The base of a link that is not on the ready list.
    pub(crate) fn new(owner: LinkOwner) -> LinkBase {
        LinkBase { owner, queued: false, stalled: false, attended: false, attempt: None }
    }

    /// True if its attempt had begun when a starved listener tried to accept.
    pub(crate) fn began_before(&self, starved: &StarvedListener) -> bool {
        self.attempt.is_some_and(|attempt| attempt < starved.before)
    }
}

/// The socket, or the sockets, of a listener.
pub trait Acceptor: Send {
    /// A connection that has just been accepted.
    type Peer;

    /// Accepts a connection. `WouldBlock`: none waits.
    fn accept(&mut self) -> io::Result<Self::Peer>;
    /// True if a connection waits, or an error. This takes a fraction of the time of an accept that
    /// finds nothing, as that makes a socket first.
    fn has_peer(&self) -> bool;
    /// Registers the sockets with the reactor.
    fn watch(&mut self, reactor: &ReactorShare, source: Source) -> Result<(), RnicError>;
    /// Removes them from the reactor.
    fn forget(&mut self, reactor: &ReactorShare);
    /// Another acceptor of the same connections, for another reactor. From the first such call on,
    /// `watch` registers the sockets behind those of the other reactors, and a connection wakes the
    /// first of these in which a thread waits. The caller registers anew what it has registered by
    /// then. None: this is not possible.
    ///
    /// # Errors
    /// The kernel's.
    fn share(&mut self) -> io::Result<Option<Self>>
    where
        Self: Sized,
    {
        Ok(None)
    }
}

/// A link of one transport, as the tables see it.
pub trait Link: Sized + Send + 'static {
    /// The parts that the driver of this transport has beside the generic ones.
    type Parts: Send;
    /// The part that each of its queue pairs has beside the generic one.
    type OfQp: Default + Send;
    /// Its listeners' sockets.
    type Acceptor: Acceptor;

    /// The driver's part of the link.
    fn base(&self) -> &LinkBase;
    /// The driver's part of the link.
    fn base_mut(&mut self) -> &mut LinkBase;
    /// The state of the queue pair that the link belongs to.
    fn state(&self, qp: &Self::OfQp) -> QpState;

    /// Records the readiness that the reactor saw.
    fn note_ready(&mut self, ready: Ready);
    /// Registers the link's descriptor with the reactor, if it has one by now.
    fn watch(&mut self, reactor: &ReactorShare, source: Source) -> Result<(), RnicError>;
    /// Removes the link's descriptor from the reactor.
    fn forget(&mut self, reactor: &ReactorShare);
    /// Makes the end of this link, which follows, one without order: the peer sees a reset.
    fn abort(&mut self);
    /// The mark of a connection without a link that it is on the ready list.
    fn opening_queued(parts: &mut Self::Parts, id: u32) -> Option<&mut bool>;
    /// The mark of a connection of several links that it is on the ready list.
    fn group_queued(_parts: &mut Self::Parts, _id: u32) -> Option<&mut bool> {
        None
    }
    /// Checks that another RNIC can have the link.
    ///
    /// # Errors
    /// `Unsupported`: the link stays here until it ends.
    fn check_may_move(&self) -> Result<(), RnicError> {
        Ok(())
    }

    /// Checks that the queue pair may post a send. False: its state forbids it.
    fn check_post(&self, qp: &QueuePair<Self>) -> Result<bool, RnicError>;
    /// Puts a send into the link's queue. Nothing leaves before the doorbell.
    fn post(driver: &mut Driver<Self>, qp: u32, id: u32, wr: TxWr) -> Result<(), RnicError>;
    /// Offers the link a receive of its queue pair. Returns it if the queue pair keeps it.
    #[cfg(any(test, feature = "internals"))]
    fn take_recv(&mut self, buf: RxBuf) -> Result<Option<RxBuf>, RnicError>;
    /// A key was closed that a peer may be using. True: the link has something to do about it.
    fn close_key(&mut self, _key: Key) -> bool {
        false
    }
    /// An MR has ended that work of this link may refer to.
    fn revoke_mr(driver: &mut Driver<Self>, qp: u32, id: u32, key: Key);
    /// A queue pair is dead: frees the resources of its connection.
    fn end_qp(_qp: &mut Self::OfQp) {}
    /// A queue pair was destroyed.
    fn drop_qp(_parts: &mut Self::Parts, _qp: Self::OfQp) {}
}

/// How connections come up and go.
pub trait LinkSetup: Link {
    /// Opens the sockets of a listener. Returns the address that it is bound to.
    fn open(
        driver: &mut Driver<Self>,
        addr: SocketAddr,
        opts: &ListenOpts,
    ) -> Result<(Self::Acceptor, SocketAddr), RnicError>;
    /// Lets a listener take link groups, or not (`Rnic::take_groups`).
    fn take_groups(_driver: &mut Driver<Self>, _listener: u32, _takes: TakesGroups) {}
    /// Begins the start-up with a peer that has been accepted, and notes it by
    /// `Driver::add_startup`.
    fn begin_startup(
        driver: &mut Driver<Self>,
        listener: u32,
        peer: <Self::Acceptor as Acceptor>::Peer,
        now: Time,
    );
    /// True while a start-up waits for the peer's request.
    fn is_starting(driver: &Driver<Self>, id: u32) -> bool;
    /// Looks once more for the request of a start-up that is about to be dropped.
    fn serve_startup(driver: &mut Driver<Self>, id: u32, now: Time);
    /// Drops a start-up.
    fn drop_startup(driver: &mut Driver<Self>, id: u32);
    /// The peers that this RNIC has accepted.
    fn accepted_peers(driver: &Driver<Self>) -> HashSet<SocketAddr>;
    /// Fails connection attempts of this RNIC to a starved listener that had begun before its accept and
    /// are not accepted. They fail with the listener's error.
    fn fail_attempts(driver: &mut Driver<Self>, starved: &StarvedListener, now: Time);

    /// Accepts a request for a queue pair in `Init`. Returns (our address, the peer's), and the
    /// time that the rest of the start-up may take.
    ///
    /// # Errors
    /// The request still waits for its answer.
    fn answer(
        driver: &mut Driver<Self>,
        id: u32,
        qp: Qp,
        param: &ConnParam<'_>,
    ) -> Result<((SocketAddr, SocketAddr), Duration), RnicError>;
    /// The queue pair has the link of an accepted request: what the answer began goes on.
    fn answered(driver: &mut Driver<Self>, id: u32, now: Time);
    /// Another RNIC takes a request or a connection over: the link has left this one.
    fn detached(_driver: &mut Driver<Self>, _id: u32, _link: &mut Self) {}
    /// True if nothing is under way on a link but the next message: another RNIC can have its connection.
    fn rests(driver: &Driver<Self>, id: u32) -> bool;
    /// A link of another RNIC was put into the table, with its connection. It belongs to this queue pair of
    /// this protection domain.
    fn moved(driver: &mut Driver<Self>, id: u32, of: (u32, u32));
    /// A link of another RNIC was put into the table, with its request: it is watched here.
    fn adopted(driver: &mut Driver<Self>, id: u32) -> Result<(), RnicError> {
        // Edges may have passed while the descriptor was in no reactor.
        driver.links.get_mut(id)?.note_ready(Ready { readable: true, writable: true, hup: false });
        driver.enqueue(Source::Link(id));
        driver.watch_link(id)
    }
    /// Refuses a request.
    fn refuse(
        driver: &mut Driver<Self>,
        id: u32,
        private_data: &[u8],
        now: Time,
    ) -> Result<(), RnicError>;
    /// Starts to connect a queue pair in `Init`.
    fn dial(
        driver: &mut Driver<Self>,
        qp: Qp,
        addr: SocketAddr,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<Conn, RnicError>;
    /// Checks that this transport reaches an address.
    fn reaches(_addr: SocketAddr) -> Result<(), RnicError> {
        Ok(())
    }

    /// Looks whether a link that starts up has its answer. None: it does not start up any more.
    fn poll_setup(_driver: &mut Driver<Self>, _id: u32) -> Option<bool> {
        None
    }
    /// Serves a connection that has no link yet.
    fn serve_opening(driver: &mut Driver<Self>, id: u32, now: Time);
    /// The deadline of a connection without a link has passed.
    fn opening_timed_out(driver: &mut Driver<Self>, id: u32);
    /// Closes a connection that has no link yet.
    fn drop_opening(driver: &mut Driver<Self>, id: u32);
    /// Ends a connection attempt that has no link yet, and reports this.
    fn fail_opening(driver: &mut Driver<Self>, id: u32, error: RnicError);
    /// Closes the connections without a link that a listener accepted.
    fn close_openings(_driver: &mut Driver<Self>, _listener: u32) {}
    /// A descriptor may be free: connections without a link that wait for one try again.
    fn retry_openings(_driver: &mut Driver<Self>) {}
    /// A link has left the table and the reactor: removes it from all lists, and drops it.
    fn closed(driver: &mut Driver<Self>, id: u32, link: Self);
}

/// How connections move data.
pub trait Traffic: LinkSetup {
    /// What of a link is lent.
    type Loan: LentConnection;

    /// Does the work that is due at the beginning of `progress`.
    fn begin_progress(_driver: &mut Driver<Self>, _now: Time) {}
    /// Does the work that is due at the end of `progress`.
    fn end_progress(_driver: &mut Driver<Self>, _now: Time) {}
    /// Serves a link that is ready.
    fn serve(driver: &mut Driver<Self>, id: u32, now: Time);
    /// The deadline of a link has passed.
    fn timed_out(driver: &mut Driver<Self>, id: u32, now: Time);
    /// The reactor saw that a link is ready.
    fn became_ready(_driver: &mut Driver<Self>, _id: u32) {}
    /// The reactor saw that a connection of several links is ready.
    fn group_ready(_driver: &mut Driver<Self>, _id: u32, _ready: Ready) {}
    /// Serves a connection of several links.
    fn serve_group(_driver: &mut Driver<Self>, _id: u32, _now: Time) {}
    /// The deadline of such a connection has passed.
    fn group_timed_out(_driver: &mut Driver<Self>, _id: u32, _now: Time) {}
    /// True if several links share the connection (`Rnic::shares_stream`).
    fn shares_stream(_driver: &Driver<Self>, _id: u32) -> bool {
        false
    }
    /// Rings the doorbell, and leaves the write to a later one (`Rnic::flush_later`).
    fn flush_later(_driver: &mut Driver<Self>, _id: u32, _now: Time) -> bool {
        false
    }
    /// Keeps what several links send together (`Rnic::hold_writes`).
    fn hold_writes(_driver: &mut Driver<Self>) -> bool {
        false
    }
    /// Lets it go.
    fn release_writes(_driver: &mut Driver<Self>) {}
    /// The doorbell of the whole driver rang.
    fn doorbell_rang(_driver: &mut Driver<Self>) {}
    /// The earliest deadline of work that has no [`Source`]. None: there is no such work.
    fn due(_parts: &Self::Parts) -> Option<Time> {
        None
    }

    /// Lets everything that was posted to a link leave.
    fn flush(driver: &mut Driver<Self>, id: u32, now: Time);
    /// Rings the doorbell, and leaves the write to the caller (`Rnic::defer_flush`).
    fn defer_flush(_driver: &mut Driver<Self>, _id: u32, _now: Time) -> Option<DeferredWrite> {
        None
    }
    /// Such a write has ended (`Rnic::end_deferred`).
    fn end_deferred(_driver: &mut Driver<Self>, _end: DeferredEnd, _now: Time) {}
    /// The threads that have such writes do not come back (`Rnic::forget_deferred`).
    fn forget_deferred(_driver: &mut Driver<Self>) {}
    /// Ends the connection of a link.
    fn disconnect(
        driver: &mut Driver<Self>,
        qp: Qp,
        id: u32,
        how: Disconnect,
        now: Time,
    ) -> Result<(), RnicError>;
    /// Looks at a link without a system call (`Rnic::peek_attended`).
    fn peek_attended(&self) -> Option<Attended> {
        None
    }
    /// Announces the sleep of the thread that attends a link which `peek_attended` found idle.
    fn sleep_attended(&mut self, _how: AttendedBlock) -> AttendedWait {
        AttendedWait::Ready
    }
    /// Lends the stream of the link (`Rnic::lend_stream`).
    fn lend_stream(&mut self) -> Option<Arc<SharedStream>> {
        None
    }
    /// Lends a link to the threads that block on it (`Rnic::lend`).
    fn lend(driver: &mut Driver<Self>, id: u32) -> Option<Self::Loan>;
    /// Takes a link back (`Rnic::end_loan`).
    fn end_loan(driver: &mut Driver<Self>, id: u32, loan: Self::Loan, reads: bool, now: Time);
    /// True if the peer can make a descriptor readable that the program polls.
    fn can_sleep_polled(&self) -> bool {
        false
    }
    /// Announces the sleep of a program that polls a descriptor (`Rnic::sleep_polled`).
    fn sleep_polled(&mut self, _end: BorrowedFd<'_>) -> PolledSleep {
        PolledSleep::Unable
    }
    /// The peer's rings at that descriptor since the last call (`Rnic::take_polled_rings`).
    fn take_polled_rings(&mut self) -> u32 {
        0
    }
    /// Looks in memory for work of a link that a thread attends (`Rnic::poll_attended`).
    fn poll_attended(&self) -> Option<bool> {
        None
    }
    /// The wait of the thread that attends a link has ended (`Rnic::wake_attended`).
    fn wake_attended(driver: &mut Driver<Self>, id: u32, end: AttendedEnd<'_>);
    /// Begins to leave a link to the thread that attends it.
    fn begin_attendance(driver: &mut Driver<Self>, id: u32);
    /// Connections like that of the link need a stream of their own (`Rnic::keep_apart`).
    fn keep_apart(_driver: &mut Driver<Self>, _id: u32) {}
    /// Takes a link back.
    ///
    /// # Errors
    /// The kernel lacks the memory.
    fn end_attendance(driver: &mut Driver<Self>, id: u32) -> Result<(), RnicError>;
    /// Sends an eager message (`Rnic::try_send_eager`).
    fn try_send_eager(
        driver: &mut Driver<Self>,
        qp: Qp,
        payload: &IoVec<'_>,
        head: &mut dyn FnMut(&mut [u8; HEAD]) -> usize,
    ) -> EagerSend;
    /// Takes an eager message (`Rnic::next_eager`).
    fn next_eager(driver: &mut Driver<Self>, out: &mut [u8]) -> Option<EagerRecv>;
    /// Ends the loan of a message (`Rnic::release_eager`).
    fn release_eager(_driver: &mut Driver<Self>, _qp: Qp) {}
    /// Leaves further messages of a queue pair where they are (`Rnic::pause_eager`).
    fn pause_eager(_driver: &mut Driver<Self>, _qp: Qp) -> bool {
        true
    }
    /// Ends the pause of every queue pair (`Rnic::resume_eager`).
    fn resume_eager(_driver: &mut Driver<Self>) {}
    /// Tries for bytes (`Rnic::spin`).
    fn spin(driver: &mut Driver<Self>, now: Time) -> bool;
    /// True if `spin` leaves connections to the reactor (`Rnic::spins_by_reactor`).
    fn spins_by_reactor(_driver: &Driver<Self>) -> bool {
        false
    }
    /// Looks for completions in memory (`Rnic::poll_memory`).
    fn poll_memory(_driver: &mut Driver<Self>) -> Option<bool> {
        None
    }
    /// Looks for completions by system calls (`Rnic::poll_syscall`).
    fn poll_syscall(_driver: &mut Driver<Self>) -> Option<bool> {
        None
    }
    /// Prepares for a sleep (`Rnic::prepare_sleep`).
    fn prepare_sleep(_driver: &mut Driver<Self>) -> bool {
        false
    }
}
