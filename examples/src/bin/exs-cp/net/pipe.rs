use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use super::NetError;

pub(crate) struct Buffer(Vec<u8>, usize);
impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0[..self.1]
    }
}
impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let n = self.1;
        &mut self.0[..n]
    }
}

pub(crate) enum Happened {
    Sent(Buffer),
    Received(Buffer, usize),
    Eof,
}

pub(crate) struct Pipe {
    sock: TcpStream,
    recvs: std::collections::VecDeque<Buffer>,
    sent: Vec<Buffer>,
    eof: bool,
}
pub(crate) const SIZE: usize = (1 << 20) + 4096;
pub(crate) const SENDS: usize = 6;
pub(crate) const RECVS: usize = 6;

impl Pipe {
    pub(crate) fn connect(
        addr: SocketAddr,
        _: Transport,
        _: &std::sync::Arc<std::sync::atomic::AtomicBool>,
    ) -> Result<Pipe, NetError> {
        Pipe::new(TcpStream::connect(addr)?)
    }
    fn new(sock: TcpStream) -> Result<Pipe, NetError> {
        sock.set_nodelay(true)?;
        Ok(Pipe { sock, recvs: Default::default(), sent: vec![], eof: false })
    }
    pub(crate) fn buffers(&self) -> Result<(Vec<Buffer>, Vec<Buffer>), NetError> {
        Ok((
            (0..SENDS).map(|_| Buffer(vec![0; SIZE], SIZE)).collect(),
            (0..RECVS).map(|_| Buffer(vec![0; SIZE], SIZE)).collect(),
        ))
    }
    pub(crate) fn send(&mut self, b: Buffer, len: usize) -> Result<(), NetError> {
        self.sock.set_nonblocking(false)?;
        self.sock.write_all(&b[..len])?;
        self.sent.push(b);
        Ok(())
    }
    pub(crate) fn recv(&mut self, b: Buffer) -> Result<(), NetError> {
        self.recvs.push_back(b);
        Ok(())
    }
    pub(crate) fn wait(
        &mut self,
        out: &mut Vec<Happened>,
        timeout: Duration,
    ) -> Result<(), NetError> {
        out.extend(self.sent.drain(..).map(Happened::Sent));
        if self.eof {
            return Ok(());
        }
        if let Some(mut b) = self.recvs.pop_front() {
            if timeout.is_zero() || !out.is_empty() {
                self.sock.set_nonblocking(true)?;
            } else {
                self.sock.set_nonblocking(false)?;
                self.sock.set_read_timeout(Some(timeout))?;
            }
            match self.sock.read(&mut b) {
                Ok(0) => {
                    self.eof = true;
                    out.push(Happened::Eof)
                }
                Ok(n) => out.push(Happened::Received(b, n)),
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) =>
                {
                    self.recvs.push_front(b)
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
    pub(crate) fn close(&mut self) {}
    pub(crate) fn abort(&mut self) {}
    pub(crate) fn peer(&self) -> String {
        self.sock.peer_addr().unwrap().to_string()
    }
}
pub(crate) struct Listener(TcpListener);
impl Listener {
    pub(crate) fn bind(a: SocketAddr, _: Transport) -> Result<Listener, NetError> {
        Ok(Listener(TcpListener::bind(a)?))
    }
    pub(crate) fn addr(&self) -> Result<SocketAddr, NetError> {
        self.0.local_addr()
    }
    pub(crate) fn accept(&mut self, timeout: Duration) -> Result<Option<Pipe>, NetError> {
        self.0.set_nonblocking(true)?;
        match self.0.accept() {
            Ok((s, _)) => {
                s.set_nonblocking(false)?;
                Ok(Some(Pipe::new(s)?))
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(timeout.min(Duration::from_millis(20)));
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Transport;
impl From<crate::cli::TransportArg> for Transport {
    fn from(_: crate::cli::TransportArg) -> Self {
        Transport
    }
}
pub(crate) fn transport_name(_: Transport) -> String {
    "soft".into()
}
