//! The program's hold on a socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::context::Context;
use super::engine::SockId;

/// Whether the program has taken a connection that an accept brought. The engine keeps a
/// copy, as it may end the process while the event still waits.
pub(super) type Claim = Arc<AtomicBool>;

/// The program's hold on a socket: when it is dropped, the socket closes. The connection of an
/// accept that the program has not taken is reset instead: its peer must not take a service that
/// it never had for one that has ended in order.
#[allow(unnameable_types, reason = "an event is made of it, by this crate alone")]
pub struct SocketHandle {
    context: Arc<Context>,
    id: SockId,
    /// None: the program has made the socket itself.
    taken: Option<Claim>,
    /// The program's number for the socket; 0 until the program sets it. Each event of an
    /// operation posted from then on carries it.
    user_data: AtomicU64,
}

impl SocketHandle {
    pub(crate) fn new(context: Arc<Context>, id: SockId) -> SocketHandle {
        SocketHandle { context, id, taken: None, user_data: AtomicU64::new(0) }
    }

    /// Of a connection that an accept's event carries.
    pub(crate) fn accepted(context: Arc<Context>, id: SockId, taken: Claim) -> SocketHandle {
        SocketHandle { context, id, taken: Some(taken), user_data: AtomicU64::new(0) }
    }

    /// The program takes the connection.
    pub(crate) fn take(&self) {
        if let Some(taken) = &self.taken {
            taken.store(true, Ordering::Relaxed);
        }
    }

    /// The socket's name in the engine.
    pub(crate) fn id(&self) -> SockId {
        self.id
    }

    pub(crate) fn user_data(&self) -> u64 {
        self.user_data.load(Ordering::Relaxed)
    }

    pub(crate) fn set_user_data(&self, number: u64) {
        self.user_data.store(number, Ordering::Relaxed);
    }

    /// Its context.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for SocketHandle {
    fn drop(&mut self) {
        // Never takes the engine's lock: a handle may be dropped under it, with an event that no
        // thread dequeued.
        let taken = self.taken.as_ref().is_none_or(|t| t.load(Ordering::Relaxed));
        self.context.release(self.id, taken);
    }
}

impl std::fmt::Debug for SocketHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Socket#{}.{}", self.id.index, self.id.generation)
    }
}
