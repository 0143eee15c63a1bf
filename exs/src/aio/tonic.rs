//! Streams for the server of tonic.

use tonic::transport::server::{Connected, TcpConnectInfo};

use super::AsyncStream;

/// `serve_with_incoming` of tonic's server takes a listener as it is. `Request::remote_addr` and
/// `Request::local_addr` have the addresses of the connection.
impl Connected for AsyncStream {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        TcpConnectInfo { local_addr: self.local_addr().ok(), remote_addr: self.peer_addr().ok() }
    }
}
