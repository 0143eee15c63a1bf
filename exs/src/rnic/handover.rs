//! Connection requests, connections and listeners on their way from one RNIC to another.

use std::any::Any;
use std::fmt;

use super::RnicError;

/// Takes a driver's state out of its box. `usage` says what the RNIC does not support if the state is
/// of another kind.
fn state_of<T: Any>(state: Box<dyn Any + Send>, usage: &'static str) -> Result<T, RnicError> {
    state.downcast::<T>().map(|state| *state).map_err(|_| RnicError::Unsupported(usage))
}

/// A connection request that [`detach_request`](super::Rnic::detach_request) has taken out of one
/// RNIC, for [`adopt_request`](super::Rnic::adopt_request) of another one of the same kind.
///
/// It owns the connection. If it is dropped, the peer's attempt fails, as it does when a listener
/// closes.
pub struct DetachedRequest(Box<dyn Any + Send>);

impl DetachedRequest {
    /// Wraps the driver's state of the request. Dropping `state` must end the peer's
    /// attempt.
    pub(crate) fn new(state: impl Any + Send) -> DetachedRequest {
        DetachedRequest(Box::new(state))
    }

    /// Takes the driver's state out.
    ///
    /// # Errors
    /// The request comes from an RNIC of another kind. It ends with this call.
    pub(crate) fn into_state<T: Any>(self) -> Result<T, RnicError> {
        state_of(self.0, "use for a request of an RNIC of another kind")
    }
}

/// An established connection that [`detach_connection`](super::Rnic::detach_connection) has taken out of
/// one RNIC, for [`adopt_connection`](super::Rnic::adopt_connection) of another one of the same kind.
///
/// If it is dropped, the peer sees the connection break.
pub struct DetachedConnection(Box<dyn Any + Send>);

impl DetachedConnection {
    /// Wraps the driver's state of the connection. Dropping `state` must break the connection.
    pub(crate) fn new(state: impl Any + Send) -> DetachedConnection {
        DetachedConnection(Box::new(state))
    }

    /// Takes the driver's state out.
    ///
    /// # Errors
    /// The connection comes from an RNIC of another kind. It breaks with this call.
    pub(crate) fn into_state<T: Any>(self) -> Result<T, RnicError> {
        state_of(self.0, "use for a connection of an RNIC of another kind")
    }
}

impl fmt::Debug for DetachedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DetachedConnection")
    }
}

/// The port of a listener, for another RNIC that will listen there, too: see
/// [`share_listener`](super::Rnic::share_listener).
pub struct SharedPort(Box<dyn Any + Send>);

impl SharedPort {
    /// Wraps the driver's state of the listener.
    pub(crate) fn new(state: impl Any + Send) -> SharedPort {
        SharedPort(Box::new(state))
    }

    /// Takes the driver's state out.
    ///
    /// # Errors
    /// The listener is of an RNIC of another kind.
    pub(crate) fn into_state<T: Any>(self) -> Result<T, RnicError> {
        state_of(self.0, "use for a listener of an RNIC of another kind")
    }
}

impl fmt::Debug for SharedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedPort")
    }
}

impl fmt::Debug for DetachedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DetachedRequest")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_kind_gets_the_state_back() {
        assert_eq!(DetachedRequest::new(7_u32).into_state::<u32>(), Ok(7));
        let other = DetachedRequest::new(7_u32).into_state::<i32>();
        assert!(matches!(other, Err(RnicError::Unsupported(_))), "{other:?}");
        assert_eq!(SharedPort::new(7_u32).into_state::<u32>(), Ok(7));
        let other = SharedPort::new(7_u32).into_state::<i32>();
        assert!(matches!(other, Err(RnicError::Unsupported(_))), "{other:?}");
    }
}
