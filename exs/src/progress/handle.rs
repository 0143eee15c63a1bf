//! The program's hold on a socket, by which calls enter its engine.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::branches::BranchTable;
use super::call::Call;
use super::context::{Context, Entry};
#[cfg(feature = "tokio")]
use super::engine::TaskSend;
use super::engine::{Engine, RecvAtOnce, SockId};
use super::error::Error;
use super::exit;
use super::loan::{LentRecv, LoanCell, LoopRecv};
use super::passing::PassingRecv;
use super::queue::QueueCore;
use super::residence::{Home, Residence};
use super::shards::{self, Shard};
use crate::mem::Buffer;
use crate::rnic::LentSend;
use crate::sys::IoVec;
use crate::time::Time;

/// Whether the program has taken a connection that an accept brought. The engine keeps a copy,
/// since it may end the process while the event still waits.
pub(super) type Claim = Arc<AtomicBool>;

/// The program's hold on a socket. When it is dropped, the socket closes. If the program has not
/// taken the connection of an accept, the connection is reset instead. Its peer must not mistake a
/// service that it never had for a service that ended in order.
#[allow(unnameable_types, reason = "an event is made of it, by this crate alone")]
pub struct SocketHandle {
    residence: Residence,
    /// Set when the program takes the connection of an accept. None: the program has made the
    /// socket itself.
    taken: Option<Claim>,
    /// The program's number for the socket; 0 until the program sets it. Each event of an operation
    /// posted from then on carries the number.
    user_data: AtomicU64,
    /// Set when the socket has become a listener.
    listens: AtomicBool,
    /// Other shards that accept from the socket.
    branches: BranchTable,
    /// The connection's loan to the threads that block on it, or to an event loop. None until one comes
    /// that could have it.
    loan: OnceLock<Arc<LoanCell>>,
}

impl SocketHandle {
    pub(crate) fn new(context: Arc<Context>, id: SockId) -> SocketHandle {
        SocketHandle::with(Residence::new(Home { context, id }), None)
    }

    /// The handle of a connection that an accept's event carries.
    pub(crate) fn accepted(context: Arc<Context>, id: SockId, taken: Claim) -> SocketHandle {
        SocketHandle::with(Residence::accepted(Home { context, id }), Some(taken))
    }

    fn with(residence: Residence, taken: Option<Claim>) -> SocketHandle {
        SocketHandle {
            residence,
            taken,
            user_data: AtomicU64::new(0),
            listens: AtomicBool::new(false),
            branches: BranchTable::default(),
            loan: OnceLock::new(),
        }
    }

    pub(super) fn branches(&self) -> &BranchTable {
        &self.branches
    }

    /// The program takes the connection.
    pub(crate) fn take(&self) {
        if let Some(taken) = &self.taken {
            taken.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn user_data(&self) -> u64 {
        self.user_data.load(Ordering::Relaxed)
    }

    pub(crate) fn set_user_data(&self, number: u64) {
        self.user_data.store(number, Ordering::Relaxed);
    }

    /// The shard in which the socket lives.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.residence.place().context
    }

    /// The socket's name in this shard. None: it lives in another shard, or has no connection.
    pub(crate) fn id_in(&self, context: &Arc<Context>) -> Option<SockId> {
        let at = self.residence.place();
        (self.is_connected() && Arc::ptr_eq(&at.context, context)).then_some(at.id)
    }

    /// The shard in which a socket with a connection lives, and its name there.
    pub(crate) fn home(&self) -> Option<(&Arc<Context>, SockId)> {
        self.residence.stay().map(|home| (&home.context, home.id))
    }

    /// True if the socket is connected, or connects.
    pub(crate) fn is_connected(&self) -> bool {
        self.residence.is_connected()
    }

    /// The shard of the queue that suits a blocking call on the socket. It is the socket's home. A
    /// socket without a connection may move to the shard of the thread, unless it listens.
    pub(crate) fn shard(&self) -> Shard {
        match self.is_connected() || self.look(|engine, id| engine.sockets.is_listening(id)) {
            true => self.context().shard(),
            false => shards::of_thread(),
        }
    }

    /// Runs a call of the API that names no queue on the socket's engine.
    pub(crate) fn call<T>(&self, f: impl FnOnce(&mut Engine, SockId, Time) -> T) -> T {
        self.enter(Entry::Call, |engine, id, call| f(engine, id, call.now()))
    }

    /// Makes the socket a listener.
    pub(crate) fn listen(&self, backlog: u32) -> Result<(), Error> {
        self.call(|engine, id, _| engine.listen(id, backlog))?;
        self.listens.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Runs a call that names a queue on the socket's engine.
    #[inline]
    pub(crate) fn post<T>(
        &self,
        queue: &QueueCore,
        f: impl FnOnce(&mut Engine, SockId, &mut Call<'_>) -> T,
    ) -> T {
        self.residence.choose(queue);
        self.post_here(queue, f)
    }

    /// The same, and the socket stays where it is.
    #[inline]
    fn post_here<T>(
        &self,
        queue: &QueueCore,
        f: impl FnOnce(&mut Engine, SockId, &mut Call<'_>) -> T,
    ) -> T {
        let settled = self.residence.home();
        let Home { context, id } = settled.unwrap_or_else(|| self.residence.place());
        let entry = Entry::Post(queue.shard_beside(context.shard()));
        if queue.note_post((context.shard(), *id)) {
            context.wake_waiters(queue);
        }
        match settled {
            Some(_) => context.enter(entry, |e, call| f(self.recalled(e, *id, call), *id, call)),
            None => self.enter_unsettled(entry, f),
        }
    }

    /// Sends bytes if that completes at once (`Engine::send_at_once`).
    pub(crate) fn send_at_once(&self, payload: &IoVec<'_>, may_share: bool) -> bool {
        self.residence.stay();
        self.enter(Entry::Call, |engine, id, call| {
            engine.send_at_once(id, payload, may_share, call)
        })
    }

    /// Sends few bytes of a task (`Engine::send_for_task`).
    #[cfg(feature = "tokio")]
    pub(crate) fn send_for_task(&self, payload: &IoVec<'_>, may_wait: bool) -> TaskSend {
        self.residence.stay();
        self.enter(Entry::Call, |engine, id, call| {
            engine.send_for_task(id, payload, may_wait, call)
        })
    }

    /// Takes small data that have come, for a receive that does not wait.
    pub(crate) fn recv_at_once(&self, buffer: &Buffer, end: Option<BorrowedFd<'_>>) -> RecvAtOnce {
        self.residence.stay();
        let loan = self.loan();
        let read = match loan.recv_now(&buffer.segment()) {
            LoopRecv::Message(n) => return RecvAtOnce::Passed { bytes: n as u64 },
            LoopRecv::Last(n) => {
                self.end_loan();
                return RecvAtOnce::Passed { bytes: n as u64 };
            }
            LoopRecv::Nothing => return RecvAtOnce::Unchanged,
            LoopRecv::NotLent => None,
            LoopRecv::Other(read) => Some(read),
        };
        self.enter(Entry::Call, |engine, id, call| {
            engine.recv_at_once(id, (buffer, end), (loan, read), call)
        })
    }

    /// The loan of the connection, for a thread that waits.
    pub(crate) fn loan(&self) -> &Arc<LoanCell> {
        self.loan.get_or_init(Arc::default)
    }

    /// True if the connection is lent.
    pub(crate) fn is_lent(&self) -> bool {
        self.loan.get().is_some_and(|loan| loan.is_lent())
    }

    /// Waits for a message of a connection that is lent.
    #[inline]
    pub(crate) fn recv_lent(
        &self,
        context: &Context,
        id: SockId,
        to: &mut PassingRecv<'_>,
    ) -> LentRecv {
        let loan = self.loan.get();
        loan.map_or(LentRecv::NotLent, |loan| context.recv_lent(id, loan, to))
    }

    /// Sends few bytes, if the connection is lent. True if they are on their way.
    #[inline]
    pub(crate) fn send_lent(&self, data: &IoVec<'_>) -> bool {
        match self.loan.get().map_or(LentSend::Declined, |loan| loan.send(data)) {
            LentSend::Sent => true,
            LentSend::Declined => false,
            LentSend::Unfinished => {
                self.end_loan();
                true
            }
        }
    }

    /// Ends the connection's loan, as any call does.
    fn end_loan(&self) {
        self.call(|_, _, _| ());
    }

    /// The engine for a call on the socket, which has its connection back if it was lent.
    #[inline]
    fn recalled<'e>(&self, engine: &'e mut Engine, id: SockId, call: &Call<'_>) -> &'e mut Engine {
        if self.is_lent() {
            engine.recall(id, call.now());
        }
        engine
    }

    /// Runs `f`, which begins no work, on the socket's engine.
    pub(crate) fn look<T>(&self, f: impl FnOnce(&mut Engine, SockId) -> T) -> T {
        self.enter(Entry::Look, |engine, id, _| f(engine, id))
    }

    #[inline]
    fn enter<T>(&self, entry: Entry, f: impl FnOnce(&mut Engine, SockId, &mut Call<'_>) -> T) -> T {
        match self.residence.home() {
            Some(Home { context, id }) => {
                context.enter(entry, |e, call| f(self.recalled(e, *id, call), *id, call))
            }
            None => self.enter_unsettled(entry, f),
        }
    }

    #[cold]
    fn enter_unsettled<T>(
        &self,
        entry: Entry,
        mut f: impl FnOnce(&mut Engine, SockId, &mut Call<'_>) -> T,
    ) -> T {
        loop {
            let at = self.residence.place();
            let entered = at.context.enter(entry, |engine, call| match self.residence.is_at(at) {
                true => Ok(f(engine, at.id, call)),
                // Another thread has moved the socket meanwhile.
                false => Err(f),
            });
            match entered {
                Ok(result) => return result,
                Err(again) => f = again,
            }
        }
    }

    /// Posts a connect. A socket that has not connected before goes to the shard of the queue.
    pub(crate) fn connect<T>(
        &self,
        queue: &QueueCore,
        f: impl FnOnce(&mut Engine, SockId, &mut Call<'_>) -> T,
    ) -> T {
        self.residence.dial_from(queue);
        self.post_here(queue, f)
    }
}

impl Drop for SocketHandle {
    fn drop(&mut self) {
        // In the child of a fork(2) the socket is the parent's, and a lock may be held for ever.
        if !exit::owns_sockets() {
            return;
        }
        // The port must be free when the drop returns, as that of a kernel socket is. Only the program
        // drops a listener, so this thread does not hold the engine's lock.
        if self.listens.load(Ordering::Relaxed) {
            return self.call(|engine, id, now| engine.release_socket(id, now));
        }
        // The rest never takes the lock: a connection may be dropped under it, with an event that no
        // thread dequeued.
        let taken = self.taken.as_ref().is_none_or(|t| t.load(Ordering::Relaxed));
        let Home { context, id } = self.residence.place();
        context.release(*id, taken);
    }
}

impl std::fmt::Debug for SocketHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Home { context, id } = self.residence.place();
        write!(f, "Socket#{}.{}.{}", context.shard().index(), id.index, id.generation)
    }
}
