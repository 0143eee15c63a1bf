//! A connector, for clients that open their connections through a [`Service`] of tower.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Uri;
use tower_service::Service;

use super::AsyncStream;
use crate::api::{Error, Host, Options};

/// Connects to the host and the port of a URI, as a `Service<Uri>` of the crate tower-service.
///
/// The client of hyper-util takes it (feature `hyper`), and so does `Endpoint::connect_with_connector`
/// of tonic (feature `tonic`). A port that the URI does not name is 80, and 443 for `https` and
/// `wss`. The connector starts no TLS: layers above it do.
///
/// ```
/// use exs::aio::{AsyncConnector, AsyncListener};
/// use tower_service::Service;
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let listener = AsyncListener::bind("127.0.0.1:0".parse()?)?;
/// let mut connector = AsyncConnector::new();
/// let uri = format!("http://{}/index.html", listener.local_addr()?).parse()?;
/// let client = connector.call(uri).await?;
/// assert_eq!(client.peer_addr()?, listener.local_addr()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct AsyncConnector {
    options: Options,
}

impl AsyncConnector {
    /// A connector with default options.
    pub fn new() -> AsyncConnector {
        AsyncConnector::default()
    }

    /// A connector whose connections have these options. [`Options::connect_timeout`] limits the time
    /// of a connect.
    ///
    /// ```
    /// use exs::aio::AsyncConnector;
    /// use exs::{Options, Transport};
    /// let connector = AsyncConnector::with_options(Options::default().with_transport(Transport::Soft));
    /// # let _ = connector;
    /// ```
    pub fn with_options(options: Options) -> AsyncConnector {
        AsyncConnector { options }
    }
}

/// The host of a URI.
fn host_of(uri: &Uri) -> Result<Host, Error> {
    let port = uri.port_u16().or_else(|| match uri.scheme_str() {
        Some("http" | "ws") => Some(80),
        Some("https" | "wss") => Some(443),
        _ => None,
    });
    let (Some(host), Some(port)) = (uri.host(), port) else {
        return Err(Error::invalid(format!(
            "the URI {uri} does not say where to connect: it needs a host, and a port unless its \
             scheme is http or https, as in http://server.example:7471"
        )));
    };
    // An IPv6 address stands in brackets there.
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    Host::new(bare.unwrap_or(host), port)
}

impl Service<Uri> for AsyncConnector {
    type Response = AsyncStream;
    type Error = Error;
    type Future = ConnectFuture;

    /// Always ready.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    /// Connects. The future has the errors of [`AsyncStream::connect`], and [`Error::Invalid`] for a
    /// URI without a host or a port.
    fn call(&mut self, uri: Uri) -> ConnectFuture {
        let options = self.options.clone();
        let connect = async move { AsyncStream::connect_with(host_of(&uri)?, options).await };
        ConnectFuture(Box::pin(connect))
    }
}

/// A connect of an [`AsyncConnector`]. If it is dropped, the connection is not made, or is closed.
#[must_use = "a future does nothing unless it is awaited"]
pub struct ConnectFuture(Pin<Box<dyn Future<Output = Result<AsyncStream, Error>> + Send>>);

impl Future for ConnectFuture {
    type Output = Result<AsyncStream, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for ConnectFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectFuture")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uri_names_the_host() {
        let host = |uri: &str| host_of(&uri.parse().unwrap()).map(|host| host.to_string());
        assert_eq!(host("http://server.example/path?x").unwrap(), "server.example:80");
        assert_eq!(host("https://server.example").unwrap(), "server.example:443");
        assert_eq!(host("http://server.example:7471/path").unwrap(), "server.example:7471");
        assert_eq!(host("exs://192.0.2.1:7471").unwrap(), "192.0.2.1:7471");
        assert_eq!(host("http://[2001:db8::1]:7471").unwrap(), "[2001:db8::1]:7471");
        // As tonic and proxies have it.
        assert_eq!(host("server.example:7471").unwrap(), "server.example:7471");
        for uri in ["/path", "exs://server.example/path", "server.example"] {
            let error = host(uri).unwrap_err();
            assert!(error.to_string().contains("does not say where to connect"), "{error}");
        }
    }
}
