//! One-sided calls: the peer's memory, without its program.

use std::sync::Arc;
use std::time::Duration;

use super::{EventQueue, Export, Refused, RemoteBuffer, Socket, Token};
use crate::mem::{Access, Buffer, WORD};
use crate::progress::{Error, Rights};

/// The two one-sided operations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadOrWrite {
    Read,
    Write,
}

/// Checks what an export needs of its memory.
fn may_export(buffer: &Buffer, rights: Rights) -> Result<(), Error> {
    if buffer.is_empty() || !rights.is_any() {
        return Err(Error::invalid("an export needs at least one byte and one right"));
    }
    let addr = buffer.segment().addr();
    if rights.atomic && !addr.is_multiple_of(WORD as u64) {
        return Err(Error::invalid(format!(
            "an export for atomic operations must begin at a multiple of {WORD} (this buffer \
             begins at {addr:#x}): a MemoryRegion does, and its buffers at such offsets"
        )));
    }
    Ok(())
}

/// The rights of a window.
pub(super) fn access(rights: Rights) -> Access {
    let mut access = Access::LOCAL_READ;
    access.local_write = rights.write || rights.atomic;
    (access.remote_read, access.remote_write) = (rights.read, rights.write);
    access.remote_atomic = rights.atomic;
    access
}

/// One-sided: the peer's memory, without its program.
impl Socket {
    /// Opens a buffer to the peer of this connection, for RDMA READ and WRITE and for
    /// [atomic operations](Socket::fetch_add), until it is revoked, the lifetime is over, or the connection ends. Hand the
    /// [`Export::descriptor`] to the peer by a message of your own. It has no event.
    ///
    /// EXS extension.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let export = client.export(vec![7; 100], Rights::READ, Some(Duration::from_secs(60)))?;
    /// let mut bytes = [0; 10];
    /// server.blocking().read(&export.descriptor(), 90, &mut bytes)?;
    /// assert_eq!(bytes, [7; 10]);
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// Refused, with the buffer: not connected, or empty; for atomic operations, memory that is not
    /// aligned (EINVAL) or a device without them (EOPNOTSUPP); or, over an RDMA device, a peer holds
    /// up what was sent before, and many exports (EAGAIN).
    pub fn export(
        &self,
        buffer: impl Into<Buffer>,
        rights: Rights,
        lifetime: Option<Duration>,
    ) -> Result<Export, Refused> {
        let buffer = buffer.into();
        let len = buffer.len();
        if let Err(error) = may_export(&buffer, rights) {
            return Err(Refused { error, buffer });
        }
        let access = access(rights);
        let made = self.handle().call(|e, id, now| e.export(id, buffer, access, lifetime, now));
        match made {
            Ok((remote, export)) => {
                let descriptor = RemoteBuffer::new(remote, len as u64, rights);
                Ok(Export::new(Arc::clone(self.handle()), descriptor, export))
            }
            Err((error, buffer)) => Err(Refused { error, buffer }),
        }
    }

    /// RDMA READ: fills the buffer's window from the peer's memory at `offset`. The
    /// peer's program takes no part.
    ///
    /// EXS extension.
    ///
    /// READs and WRITEs are done in the order of posting. A READ that is cancelled on its way moves no
    /// more, and how much of the buffer it has filled is not known.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let export = client.export(vec![0; 4096], Rights::READ_WRITE, None)?;
    /// let remote = export.descriptor(); // the peer gets it by a message of the program's own
    /// export.write_at(10, b"hello")?;
    /// server.read(&queue, Token(1), &remote, 10, vec![0; 5])?;
    /// if let Completion::Read { buffer, .. } = queue.next()?.into_completion()? {
    ///     assert_eq!(&buffer[..], b"hello");
    /// }
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// Refused, with the buffer: out of the range, no right, not connected, or [`Error::WouldBlock`]. A
    /// peer that no longer allows it ends the connection: the event has EACCES, those of other
    /// operations ECONNRESET.
    pub fn read(
        &self,
        queue: &EventQueue,
        token: Token,
        remote: &RemoteBuffer,
        offset: u64,
        buffer: impl Into<Buffer>,
    ) -> Result<(), Refused> {
        self.post_one_sided(queue, token, (remote, offset), buffer.into(), ReadOrWrite::Read)
    }

    /// RDMA WRITE: copies the buffer's window into the peer's memory at `offset`. The
    /// event says that the bytes are there.
    ///
    /// EXS extension.
    ///
    /// READs and WRITEs are done in the order of posting. A message that is sent after the event finds
    /// the bytes there. A WRITE that is cancelled on its way moves no more; if the connection ends first,
    /// how much has arrived is not known.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let export = client.export(vec![0; 4096], Rights::READ_WRITE, None)?;
    /// let remote = export.descriptor(); // the peer gets it by a message of the program's own
    /// server.write(&queue, Token(1), &remote, 10, *b"hello")?;
    /// queue.next()?.into_completion()?; // from now on the client finds it
    /// let mut text = [0; 5];
    /// export.read_at(10, &mut text)?;
    /// assert_eq!(&text, b"hello");
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Socket::read`].
    pub fn write(
        &self,
        queue: &EventQueue,
        token: Token,
        remote: &RemoteBuffer,
        offset: u64,
        buffer: impl Into<Buffer>,
    ) -> Result<(), Refused> {
        self.post_one_sided(queue, token, (remote, offset), buffer.into(), ReadOrWrite::Write)
    }

    /// Posts a READ or a WRITE after the check of its range and of the peer's rights.
    fn post_one_sided(
        &self,
        queue: &EventQueue,
        token: Token,
        (remote, offset): (&RemoteBuffer, u64),
        buffer: Buffer,
        what: ReadOrWrite,
    ) -> Result<(), Refused> {
        let target = match remote.target(offset, buffer.len(), what == ReadOrWrite::Write) {
            Ok(t) => t,
            Err(error) => return Err(Refused { error, buffer }),
        };
        self.post_unseen(queue, buffer, |b| {
            self.handle().post(queue.core(), |e, id, call| {
                let (ticket, now) = (self.ticket(queue, token), call.now());
                match what {
                    ReadOrWrite::Read => e.post_read(id, &ticket, target, b, now),
                    ReadOrWrite::Write => e.post_write(id, &ticket, target, b, now),
                }
            })
        })
    }
}
