//! One-sided memory: exports and their descriptors.

use std::sync::Arc;

use super::{EventQueue, Refused, Token};
use crate::mem::{AtomicOp, Buffer, WORD};
use crate::progress::{Error, ExportId, Remote, Rights, SocketHandle, owns_sockets};

/// Names a piece of a peer's memory: what one side exports and the other reads or
/// writes. It is plain data; sending it to the peer is up to the program. [`Export`]
/// shows the whole way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteBuffer {
    remote: Remote,
    len: u64,
    rights: Rights,
}

/// Bytes that are no [`RemoteBuffer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteBufferError {
    /// Not [`RemoteBuffer::BYTES`] bytes.
    #[error("a remote buffer's descriptor has 24 bytes, not {0}")]
    Length(usize),
    /// Bits that mean nothing.
    #[error("a remote buffer's descriptor with unknown rights {0:#x}")]
    Rights(u32),
    /// No bytes, or beyond the end of the address space.
    #[error("a remote buffer of {len} bytes at {addr:#x}")]
    Range {
        /// Address.
        addr: u64,
        /// Length.
        len: u64,
    },
}

impl RemoteBuffer {
    /// Bytes of [`RemoteBuffer::to_bytes`].
    pub const BYTES: usize = 24;

    pub(super) fn new(remote: Remote, len: u64, rights: Rights) -> RemoteBuffer {
        RemoteBuffer { remote, len, rights }
    }

    /// Address, length (big-endian, 8 bytes each), key, rights (4 bytes each; 1 is
    /// read, 2 is write, 4 is atomic operations).
    pub fn to_bytes(&self) -> [u8; RemoteBuffer::BYTES] {
        let Rights { read, write, atomic } = self.rights;
        let rights = u32::from(read) | u32::from(write) << 1 | u32::from(atomic) << 2;
        let mut out = [0; RemoteBuffer::BYTES];
        out[..8].copy_from_slice(&self.remote.addr.to_be_bytes());
        out[8..16].copy_from_slice(&self.len.to_be_bytes());
        out[16..20].copy_from_slice(&self.remote.key.to_be_bytes());
        out[20..].copy_from_slice(&rights.to_be_bytes());
        out
    }

    /// Reads what [`RemoteBuffer::to_bytes`] wrote.
    ///
    /// # Errors
    /// If the bytes are no descriptor. Whether the peer still allows what it says is
    /// seen when it is used.
    pub fn from_bytes(bytes: &[u8]) -> Result<RemoteBuffer, RemoteBufferError> {
        let all: &[u8; RemoteBuffer::BYTES] =
            bytes.try_into().map_err(|_| RemoteBufferError::Length(bytes.len()))?;
        let be64 = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| all[at + i]));
        let be32 = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| all[at + i]));
        let (addr, len, key, bits) = (be64(0), be64(8), be32(16), be32(20));
        if bits == 0 || bits > 7 {
            return Err(RemoteBufferError::Rights(bits));
        }
        if len == 0 || addr.checked_add(len).is_none() {
            return Err(RemoteBufferError::Range { addr, len });
        }
        let (read, write, atomic) = (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
        let rights = Rights { read, write, atomic };
        Ok(RemoteBuffer { remote: Remote { addr, key }, len, rights })
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Always false: an export has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What the peer may do with it.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// The address under which the peer's RNIC knows the first byte (the tagged
    /// offset, TO, of RFC 5040).
    pub fn addr(&self) -> u64 {
        self.remote.addr
    }

    /// The key (rkey; the STag of RFC 5040).
    pub fn key(&self) -> u32 {
        self.remote.key
    }

    /// The place of `len` bytes at `offset`, if they are inside and allowed.
    pub(super) fn target(&self, offset: u64, len: usize, write: bool) -> Result<Remote, Error> {
        let (allowed, what) = match write {
            true => (self.rights.write, "be written"),
            false => (self.rights.read, "be read"),
        };
        self.allowed_target(offset, len, (allowed, what))
    }

    /// The place of the word at `offset`, if it is inside, aligned, and open to atomic operations.
    pub(super) fn word(&self, offset: u64) -> Result<Remote, Error> {
        let allowed = (self.rights.atomic, "take part in atomic operations");
        let word = self.allowed_target(offset, WORD, allowed)?;
        if !word.addr.is_multiple_of(WORD as u64) {
            return Err(Error::invalid(format!(
                "an atomic operation at offset {offset} (address {:#x}): the address must be a \
                 multiple of {WORD}",
                word.addr
            )));
        }
        Ok(word)
    }

    fn allowed_target(
        &self,
        offset: u64,
        len: usize,
        (allowed, what): (bool, &str),
    ) -> Result<Remote, Error> {
        if !allowed {
            return Err(Error::invalid(format!("the peer does not let this memory {what}")));
        }
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.len => {
                Ok(Remote { addr: self.remote.addr + offset, key: self.remote.key })
            }
            _ => Err(Error::invalid(format!(
                "{len} bytes at {offset} are outside of the peer's {} bytes",
                self.len
            ))),
        }
    }
}

/// Memory that the peer of a connection may READ or WRITE. While it is exported it
/// is reached by copying only, as the peer may change it at any time; `revoke` gives
/// the buffer back. Dropping an export revokes it and drops the buffer. An export
/// counts as a handle of its socket: while it lives, the socket is not closed.
///
/// ```
/// use exs::{MemoryRegion, RemoteBuffer, Rights};
/// # use exs::Socket;
/// # let listener = Socket::seqpacket()?;
/// # listener.bind("127.0.0.1:0".parse().unwrap())?;
/// # listener.listen(1)?;
/// # let client = Socket::seqpacket()?;
/// # client.blocking().connect(listener.local_addr()?)?;
/// # let (server, _) = listener.blocking().accept()?;
/// // `server` and `client` are connected. The client opens memory to the server ...
/// let memory = MemoryRegion::new(4096)?;
/// let export = client.export(memory.buffer(..)?, Rights::WRITE, None)?;
/// client.blocking().send_all(&export.descriptor().to_bytes())?;
///
/// // ... which writes there by RDMA WRITE, without the client's program.
/// let mut descriptor = [0; RemoteBuffer::BYTES];
/// server.blocking().recv(&mut descriptor)?;
/// let remote = RemoteBuffer::from_bytes(&descriptor).expect("a descriptor");
/// server.blocking().write(&remote, 100, b"hello")?;
///
/// let mut text = [0; 5];
/// export.read_at(100, &mut text)?;
/// assert_eq!(&text, b"hello");
/// let buffer = export.revoke_blocking()?; // from now on the peer is shut out
/// assert_eq!(buffer.len(), 4096);
/// # Ok::<(), exs::Error>(())
/// ```
/// There is no reference to memory that a peer may change:
/// ```compile_fail,E0608
/// # fn f(export: exs::Export) {
/// let first = export[0]; // no slice of exported memory exists
/// # }
/// ```
/// A buffer that is exported is out of the program's hands:
/// ```compile_fail,E0382
/// # fn f(socket: exs::Socket) {
/// let buffer = exs::Buffer::from(vec![0u8; 5]);
/// let export = socket.export(buffer, exs::Rights::READ, None);
/// println!("{}", buffer[0]); // moved
/// # }
/// ```
#[derive(Debug)]
pub struct Export {
    handle: Arc<SocketHandle>,
    descriptor: RemoteBuffer,
    id: ExportId,
    live: bool,
}

impl Export {
    pub(super) fn new(handle: Arc<SocketHandle>, descriptor: RemoteBuffer, id: ExportId) -> Export {
        Export { handle, descriptor, id, live: true }
    }

    /// The descriptor that the program hands to the peer.
    pub fn descriptor(&self) -> RemoteBuffer {
        self.descriptor
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// If the range is not inside.
    pub fn read_at(&self, offset: usize, dst: &mut [u8]) -> Result<(), Error> {
        self.with(offset, dst.len(), |seg| seg.read_at(0, dst))
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// If the range is not inside.
    pub fn write_at(&self, offset: usize, src: &[u8]) -> Result<(), Error> {
        self.with(offset, src.len(), |seg| seg.write_at(0, src))
    }

    fn with(
        &self,
        offset: usize,
        len: usize,
        f: impl FnOnce(&crate::mem::Segment),
    ) -> Result<(), Error> {
        let export = self.id;
        self.handle.call(|e, id, _| {
            e.sockets.with_export(id, export, |seg| {
                f(&seg.slice(offset, len)?);
                Ok(())
            })
        })
    }

    /// Does an atomic operation on the word at `offset`, which was checked.
    pub(super) fn atomic(&self, offset: usize, op: AtomicOp) -> Result<u64, Error> {
        let export = self.id;
        self.handle.call(|e, id, _| e.atomic_here(id, export, offset, op))
    }

    /// Takes the memory back: the peer is shut out from now on, and
    /// [`Completion::Revoke`](super::Completion::Revoke) brings the buffer. It cannot be cancelled.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let export = client.export(vec![7; 100], Rights::READ_WRITE, None)?;
    /// export.revoke(&queue, Token(1))?;
    /// if let Completion::Revoke(buffer) = queue.next()?.into_completion()? {
    ///     assert_eq!(&buffer[..], [7; 100]);
    /// }
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// Refused, with the export: [`Error::WouldBlock`].
    pub fn revoke(mut self, queue: &EventQueue, token: Token) -> Result<(), Refused<Export>> {
        if let Err(error) = queue.core().reserve() {
            return Err(Refused { error, buffer: self });
        }
        let export = self.id;
        self.handle.post(queue.core(), |e, id, call| {
            e.revoke(id, export, &queue.ticket(token, self.handle.user_data()), call.now())
        });
        self.live = false;
        Ok(())
    }

    /// Takes the memory back and waits for it.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let export = client.export(vec![7; 100], Rights::READ_WRITE, None)?;
    /// assert_eq!(&export.revoke_blocking()?[..], [7; 100]);
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the socket is gone, and the memory with it.
    pub fn revoke_blocking(mut self) -> Result<Buffer, Error> {
        self.live = false;
        let export = self.id;
        self.handle
            .call(|e, id, now| e.unexport(id, export, now))
            .ok_or_else(|| Error::invalid("the export is gone"))
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        // In the child of a fork(2) the export is the parent's.
        if self.live && owns_sockets() {
            let export = self.id;
            self.handle.call(|e, id, now| e.unexport(id, export, now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_survive_the_journey() {
        let d = RemoteBuffer::new(
            Remote { addr: 0x0102_0304_0506_0708, key: 0x090a_0b0c },
            0x10,
            Rights::READ_WRITE,
        );
        let bytes = d.to_bytes();
        assert_eq!(
            bytes,
            [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 16, 9, 10, 11, 12, 0, 0, 0, 3]
        );
        assert_eq!(RemoteBuffer::from_bytes(&bytes), Ok(d));
        assert_eq!(RemoteBuffer::from_bytes(&bytes[1..]), Err(RemoteBufferError::Length(23)));
        let mut words = bytes;
        words[23] = 4;
        let words = RemoteBuffer::from_bytes(&words).unwrap();
        assert_eq!((words.rights(), words.to_bytes()[23]), (Rights::ATOMIC, 4));
        let mut bad = bytes;
        bad[23] = 8;
        assert_eq!(RemoteBuffer::from_bytes(&bad), Err(RemoteBufferError::Rights(8)));
        let mut bad = bytes;
        bad[..8].fill(0xff);
        assert!(matches!(RemoteBuffer::from_bytes(&bad), Err(RemoteBufferError::Range { .. })));
    }

    #[test]
    fn targets_stay_inside() {
        let d = RemoteBuffer::new(Remote { addr: 100, key: 1 }, 10, Rights::READ);
        assert_eq!(d.target(4, 6, false).unwrap().addr, 104);
        assert!(d.target(5, 6, false).is_err());
        assert!(d.target(u64::MAX, 6, false).is_err());
        assert!(d.target(0, 1, true).is_err(), "no right to write");
        assert!(d.word(0).is_err(), "no right to atomic operations");
    }

    #[test]
    fn words_are_aligned_and_inside() {
        let d = RemoteBuffer::new(Remote { addr: 100, key: 1 }, 20, Rights::ATOMIC);
        assert_eq!(d.word(4).unwrap().addr, 104);
        assert_eq!(d.word(12).unwrap().addr, 112);
        for (offset, why) in [(0, "multiple of 8"), (20, "outside"), (u64::MAX - 3, "outside")] {
            let said = d.word(offset).unwrap_err().to_string();
            assert!(said.contains(why), "{offset}: {said}");
        }
        assert!(d.target(4, 8, false).is_err(), "no right to read");
    }
}
