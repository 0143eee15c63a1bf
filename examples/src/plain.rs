//! The baseline: plain kernel sockets, as a careful program uses them without EXS.
//!
//! Blocking, with TCP_NODELAY, straight from and to one buffer. Or as an impatient
//! program has them: asked again and again, never slept on.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::registered::stalled;

/// A connected socket of the kernel. One thread may send while another one receives.
#[derive(Debug)]
pub struct Plain {
    stream: Stream,
    spin: bool,
    limit: Option<Duration>,
    sends: AtomicU64,
    receives: AtomicU64,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Plain {
    /// A TCP connection; `spin`: ask again and again in place of sleeping in the kernel.
    ///
    /// # Errors
    /// Those of its options.
    pub fn tcp(stream: TcpStream, spin: bool) -> io::Result<Plain> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(spin)?;
        Ok(Plain::new(Stream::Tcp(stream), spin))
    }

    /// The same of a UNIX-domain socket.
    ///
    /// # Errors
    /// As [`Plain::tcp`].
    pub fn unix(stream: UnixStream, spin: bool) -> io::Result<Plain> {
        stream.set_nonblocking(spin)?;
        Ok(Plain::new(Stream::Unix(stream), spin))
    }

    fn new(stream: Stream, spin: bool) -> Plain {
        let (sends, receives) = (AtomicU64::new(0), AtomicU64::new(0));
        Plain { stream, spin, limit: None, sends, receives }
    }

    /// Gives up when nothing moves for as long as this; not before 64 fruitless calls.
    ///
    /// # Errors
    /// Those of the socket's options.
    pub fn limit(mut self, limit: Duration) -> io::Result<Plain> {
        match &self.stream {
            Stream::Tcp(s) => {
                s.set_read_timeout(Some(limit)).and(s.set_write_timeout(Some(limit)))?
            }
            Stream::Unix(s) => {
                s.set_read_timeout(Some(limit)).and(s.set_write_timeout(Some(limit)))?;
            }
        }
        self.limit = Some(limit);
        Ok(self)
    }

    /// Sends all of it.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        let mut vain = Vain::default();
        while !bytes.is_empty() {
            count(&self.sends);
            let done = match &self.stream {
                Stream::Tcp(s) => (&mut &*s).write(bytes),
                Stream::Unix(s) => (&mut &*s).write(bytes),
            };
            if let Some(n) = self.again(done, &mut vain)? {
                bytes = &bytes[n..];
            }
        }
        Ok(())
    }

    /// Receives what is there, after waiting for the first byte; 0 is the end.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn recv(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut vain = Vain::default();
        loop {
            count(&self.receives);
            let done = match &self.stream {
                Stream::Tcp(s) => (&mut &*s).read(bytes),
                Stream::Unix(s) => (&mut &*s).read(bytes),
            };
            if let Some(n) = self.again(done, &mut vain)? {
                return Ok(n);
            }
        }
    }

    /// Fills `bytes`; false if the end comes before the first of them.
    ///
    /// # Errors
    /// Those of the socket; an end in the middle.
    pub fn recv_full(&self, bytes: &mut [u8]) -> io::Result<bool> {
        let mut got = 0;
        while got < bytes.len() {
            match self.recv(&mut bytes[got..])? {
                0 if got == 0 => return Ok(false),
                0 => return Err(io::Error::new(ErrorKind::UnexpectedEof, "it ends in a message")),
                n => got += n,
            }
        }
        Ok(true)
    }

    /// Ends this direction.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn end(&self) -> io::Result<()> {
        match &self.stream {
            Stream::Tcp(s) => s.shutdown(Shutdown::Write),
            Stream::Unix(s) => s.shutdown(Shutdown::Write),
        }
    }

    /// System calls so far that sent or received.
    pub fn system_calls(&self) -> u64 {
        self.sends.load(Ordering::Relaxed) + self.receives.load(Ordering::Relaxed)
    }

    /// None: once more.
    fn again(&self, done: io::Result<usize>, vain: &mut Vain) -> io::Result<Option<usize>> {
        match done {
            Err(e) if e.kind() == ErrorKind::WouldBlock => match self.limit {
                Some(limit) if !self.spin || vain.lasts(limit) => {
                    Err(io::Error::new(ErrorKind::TimedOut, stalled(limit).0))
                }
                _ if self.spin => {
                    std::hint::spin_loop();
                    Ok(None)
                }
                _ => Err(e),
            },
            Err(e) if e.kind() == ErrorKind::Interrupted => Ok(None),
            other => other.map(Some),
        }
    }
}

/// Calls of one operation that found nothing to do.
#[derive(Default)]
struct Vain {
    calls: u32,
    since: Option<Instant>,
}

impl Vain {
    /// True if it has been so for longer than `limit`. The clock is looked at seldom.
    fn lasts(&mut self, limit: Duration) -> bool {
        self.calls = self.calls.wrapping_add(1);
        self.calls.is_multiple_of(64)
            && self.since.get_or_insert_with(Instant::now).elapsed() >= limit
    }
}

/// Each counter has one thread that writes it, so this needs no locked instruction.
fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_and_the_end_is_seen() {
        for spin in [false, true] {
            let (a, b) = UnixStream::pair().unwrap();
            let (a, b) = (Plain::unix(a, spin).unwrap(), Plain::unix(b, spin).unwrap());
            a.send(&[7; 100]).unwrap();
            let mut back = [0; 100];
            assert!(b.recv_full(&mut back).unwrap());
            assert_eq!(back, [7; 100]);
            a.send(&[1]).unwrap();
            a.end().unwrap();
            assert!(b.recv_full(&mut back).is_err(), "1 of 100 bytes");
            assert!(!b.recv_full(&mut back).unwrap());
            assert_eq!(a.system_calls(), 2);
        }
    }

    #[test]
    fn the_wait_for_a_stalled_peer_has_a_limit() {
        for spin in [false, true] {
            let (a, _b) = UnixStream::pair().unwrap();
            let a = Plain::unix(a, spin).unwrap().limit(Duration::from_millis(20)).unwrap();
            let late = a.recv(&mut [0]).unwrap_err();
            assert!(late.to_string().contains("nothing has moved"), "{late}");
            // The peer does not receive: at some point there is no room.
            let late = a.send(&vec![0; 16 << 20]).unwrap_err();
            assert_eq!(late.kind(), ErrorKind::TimedOut, "{late}");
        }
    }
}
