//! The program's hold on a socket.

use std::sync::Arc;

use super::context::Context;
use super::engine::SockId;

/// The program's hold on a socket: when it is dropped, the socket closes.
pub struct SocketHandle {
    context: Arc<Context>,
    id: SockId,
}

impl SocketHandle {
    pub(crate) fn new(context: Arc<Context>, id: SockId) -> SocketHandle {
        SocketHandle { context, id }
    }

    /// The socket's name in the engine.
    pub(crate) fn id(&self) -> SockId {
        self.id
    }

    /// Its context.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for SocketHandle {
    fn drop(&mut self) {
        // Never takes the engine's lock: a handle may be dropped under it (with an
        // event that nobody dequeued).
        self.context.release(self.id);
    }
}

impl std::fmt::Debug for SocketHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Socket#{}.{}", self.id.index, self.id.generation)
    }
}
