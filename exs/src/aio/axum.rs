//! Listeners for `axum::serve`.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use axum::serve::Listener;

use super::{AsyncListener, AsyncStream};
use crate::trace::warn;

/// The time after which a listener tries again that had no resources for a connection.
const AGAIN: Duration = Duration::from_secs(1);

/// `axum::serve` takes a listener as it is.
///
/// ```
/// use axum::Router;
/// use axum::routing::get;
/// use exs::aio::AsyncListener;
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let app = Router::new().route("/", get(|| async { "hello" }));
/// let listener = AsyncListener::bind("127.0.0.1:0".parse()?)?;
/// tokio::spawn(async { axum::serve(listener, app).await });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// For handlers with a `ConnectInfo<SocketAddr>`, give `axum::serve` what
/// `ListenerExt::tap_io` makes of the listener (`listener.tap_io(|_| {})`). axum has the address only
/// for its own types.
///
/// As over TCP, an `accept` that finds no resources, such as descriptors, tries again after a second.
/// That needs tokio's timer (`enable_all`, `enable_time`).
impl Listener for AsyncListener {
    type Io = AsyncStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (AsyncStream, SocketAddr) {
        loop {
            match poll_fn(|cx| self.poll_accept(cx)).await {
                Ok(accepted) => return accepted,
                Err(error) if is_of_the_connection(error.kind()) => {}
                Err(error) => {
                    warn!("axum accepts no connection for a second: {error}");
                    // sleep-ok: nothing says when there are resources again
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(AsyncListener::local_addr(self)?)
    }
}

/// True if the error says something of the connection, and nothing of the listener.
fn is_of_the_connection(kind: ErrorKind) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(kind, ConnectionAborted | ConnectionRefused | ConnectionReset)
}
